/* Checksums and verification of a loaded job.
 *
 * Threads claim runs of items in the arena's order: many small tensors that one read covers, or a
 * stretch of a large one. Each holds three pieces of 2 MiB at most, so that memory stays small
 * whatever the model is. A CRC's stretches are computed in any order and joined by the CRC's own
 * arithmetic; a SHA-256 is one thread's from the first byte to the last. Claims go upwards and a
 * thread ends its claim before it stops, so the difference that is reported is the first one.
 */
#include "check.h"
#include "part.h"
#include "progress.h"
#include "say.h"
#include "signals.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

#define PIECE (UINT64_C(2) << 20)
/* The most of one large tensor that a thread claims at once. */
#define STRETCH (UINT64_C(64) << 20)
#define MOST_THREADS 16

struct checker {
	const struct job *job;
	struct sums *sums;
	int verify;
	EVP_MD *sha256;
	_Atomic uint64_t bytes_done;
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t ended;
	unsigned running;
	int stop;
	uint64_t next;   /* the item that is claimed next */
	uint64_t within; /* bytes of it that are claimed already */
	uint64_t bad_item, bad_byte; /* of the first difference */
	struct onehop_error error;   /* status 0: none so far */
};

struct claim {
	uint64_t first, count; /* items */
	uint64_t begin, bytes; /* of the item, when count is 1 */
};

struct worker {
	struct checker *checker;
	char *device, *disk, *window; /* PIECE each; the last two only to verify */
	EVP_MD_CTX *digest;
	struct part_file file;
	struct shape shape;
};

/* ------------------------------------------------------------------------------------------- */
/* Who does what */

/* Gathers following items while one piece of the arena covers them. */
static uint64_t
gather(const struct checker *checker, uint64_t first)
{
	uint64_t count = 1, total = checker->job->layout.count;
	uint64_t begin = job_item(checker->job, first).arena_offset;
	for (; first + count < total; count++) {
		struct onehop_item item = job_item(checker->job, first + count);
		if (item.arena_offset < begin || item.arena_offset - begin > PIECE ||
		    item.bytes > PIECE - (item.arena_offset - begin))
			break;
	}
	return count;
}

/* 1 and the next claim, or 0. */
static int
claim(struct checker *checker, struct claim *claim)
{
	int found = 0;
	pthread_mutex_lock(&checker->lock);
	if (!checker->stop && checker->next < checker->job->layout.count) {
		struct onehop_item item = job_item(checker->job, checker->next);
		found = 1;
		claim->first = checker->next;
		claim->begin = checker->within;
		claim->bytes = item.bytes - checker->within;
		if (item.bytes <= PIECE) {
			claim->count = gather(checker, checker->next);
		} else {
			claim->count = 1;
			if (claim->bytes > STRETCH && checker->sums->algorithm != CHECKSUM_SHA256)
				claim->bytes = STRETCH;
		}
		checker->within += claim->bytes;
		if (claim->count > 1 || checker->within == item.bytes) {
			checker->next += claim->count;
			checker->within = 0;
		}
	}
	pthread_mutex_unlock(&checker->lock);
	return found;
}

static void
stop(struct checker *checker, const struct onehop_error *error)
{
	pthread_mutex_lock(&checker->lock);
	checker->stop = 1;
	/* A failure is news; a difference found already says more. */
	if (!checker->error.status)
		checker->error = *error;
	pthread_mutex_unlock(&checker->lock);
}

static void
note_difference(struct checker *checker, uint64_t index, uint64_t byte, unsigned device,
		unsigned disk)
{
	char shown[SHOWN];
	struct onehop_item item = job_item(checker->job, index);
	struct onehop_tensor tensor = job_tensor(checker->job->model, item.tensor);
	pthread_mutex_lock(&checker->lock);
	if (checker->error.status != ONEHOP_MISMATCH || index < checker->bad_item ||
	    (index == checker->bad_item && byte < checker->bad_byte)) {
		checker->bad_item = index;
		checker->bad_byte = byte;
		fail(&checker->error, ONEHOP_MISMATCH, 0,
		     "tensor %s differs: its byte %llu is 0x%02x on the device and 0x%02x in the "
		     "file",
		     show(shown, tensor.name, tensor.name_bytes), (unsigned long long)byte, device,
		     disk);
		snprintf(checker->error.remedy, sizeof checker->error.remedy,
			 "load it again; if it differs again, do not use this device or file");
	}
	checker->stop = 1;
	pthread_mutex_unlock(&checker->lock);
}

/* ------------------------------------------------------------------------------------------- */
/* The work */

/* Compares bytes [at, at + bytes) of the item, as the device gave them, with the file. */
static onehop_status
compare(struct worker *worker, uint64_t index, const struct onehop_item *item, uint64_t at,
	const char *device, uint64_t bytes, struct onehop_error *error)
{
	struct part part;
	const struct job *job = worker->checker->job;
	onehop_status status = part_of(job, item, &worker->shape, &part, error);
	if (!status)
		status = part_read(job, &part, at, worker->disk, bytes, &worker->file,
				   worker->window, PIECE, error);
	if (status || memcmp(device, worker->disk, bytes) == 0)
		return status;
	uint64_t i = 0;
	while (device[i] == worker->disk[i])
		i++;
	note_difference(worker->checker, index, at + i, (unsigned char)device[i],
			(unsigned char)worker->disk[i]);
	return ONEHOP_OK;
}

/* Adds a stretch that `after` bytes of the tensor follow. A CRC of a whole is the exclusive or of
 * its stretches' CRCs, each moved past the bytes behind it. */
static void
add_crc(struct sums *sums, uint64_t index, uint32_t crc, uint64_t after)
{
	uint32_t moved = after ? (uint32_t)crc32_combine(crc, 0, (z_off_t)after) : crc;
	__atomic_fetch_xor(&sums->crc32[index], moved, __ATOMIC_RELAXED);
}

/* A stretch of one item, piece by piece. */
static onehop_status
check_stretch(struct worker *worker, const struct claim *claim, struct onehop_error *error)
{
	struct checker *checker = worker->checker;
	struct sums *sums = checker->sums;
	struct onehop_item item = job_item(checker->job, claim->first);
	uint32_t crc = 0;
	uint64_t end = claim->begin + claim->bytes, bytes;
	if (sums->algorithm == CHECKSUM_SHA256)
		EVP_DigestInit_ex(worker->digest, checker->sha256, NULL);
	for (uint64_t at = claim->begin; at < end; at += bytes) {
		bytes = end - at < PIECE ? end - at : PIECE;
		onehop_status status =
			onehop_buffer_read(checker->job->arena, item.arena_offset + at,
					   worker->device, bytes, error);
		if (!status && checker->verify)
			status = compare(worker, claim->first, &item, at, worker->device, bytes,
					 error);
		if (status)
			return status;
		if (signals_caught())
			return fail(error, ONEHOP_CANCELLED, 0, "cancelled");
		if (sums->algorithm == CHECKSUM_CRC32)
			crc = (uint32_t)crc32_z(crc, (const Bytef *)worker->device, bytes);
		else if (sums->algorithm == CHECKSUM_SHA256)
			EVP_DigestUpdate(worker->digest, worker->device, bytes);
		atomic_fetch_add(&checker->bytes_done, bytes);
	}
	if (sums->algorithm == CHECKSUM_CRC32)
		add_crc(sums, claim->first, crc, item.bytes - end);
	else if (sums->algorithm == CHECKSUM_SHA256)
		EVP_DigestFinal_ex(worker->digest, sums->sha256[claim->first], NULL);
	return ONEHOP_OK;
}

/* One item that lies whole at `bytes`. */
static onehop_status
check_small(struct worker *worker, uint64_t index, const struct onehop_item *item,
	    const char *device, struct onehop_error *error)
{
	struct sums *sums = worker->checker->sums;
	if (sums->algorithm == CHECKSUM_CRC32)
		sums->crc32[index] = (uint32_t)crc32_z(0, (const Bytef *)device, item->bytes);
	if (sums->algorithm == CHECKSUM_SHA256) {
		EVP_DigestInit_ex(worker->digest, worker->checker->sha256, NULL);
		EVP_DigestUpdate(worker->digest, device, item->bytes);
		EVP_DigestFinal_ex(worker->digest, sums->sha256[index], NULL);
	}
	if (!worker->checker->verify || item->bytes == 0)
		return ONEHOP_OK;
	return compare(worker, index, item, 0, device, item->bytes, error);
}

/* A run of small items, read back in one go. */
static onehop_status
check_run(struct worker *worker, const struct claim *claim, struct onehop_error *error)
{
	struct checker *checker = worker->checker;
	uint64_t begin = job_item(checker->job, claim->first).arena_offset, end = begin, sum = 0;
	for (uint64_t i = 0; i < claim->count; i++) {
		struct onehop_item item = job_item(checker->job, claim->first + i);
		if (item.bytes > 0 && item.arena_offset + item.bytes > end)
			end = item.arena_offset + item.bytes;
		sum += item.bytes;
	}
	onehop_status status = ONEHOP_OK;
	if (end > begin)
		status = onehop_buffer_read(checker->job->arena, begin, worker->device, end - begin,
					    error);
	for (uint64_t i = 0; i < claim->count && !status; i++) {
		struct onehop_item item = job_item(checker->job, claim->first + i);
		uint64_t skip = item.bytes ? item.arena_offset - begin : 0;
		status = check_small(worker, claim->first + i, &item, worker->device + skip, error);
	}
	if (!status && signals_caught())
		status = fail(error, ONEHOP_CANCELLED, 0, "cancelled");
	atomic_fetch_add(&checker->bytes_done, sum);
	return status;
}

static int
worker_begin(struct worker *worker, struct checker *checker)
{
	memset(worker, 0, sizeof *worker);
	worker->checker = checker;
	worker->file.fd = -1;
	worker->device = malloc(PIECE);
	if (checker->verify) {
		worker->disk = malloc(PIECE);
		worker->window = malloc(PIECE);
	}
	if (checker->sums->algorithm == CHECKSUM_SHA256)
		worker->digest = EVP_MD_CTX_new();
	return worker->device && (!checker->verify || (worker->disk && worker->window)) &&
	       (checker->sums->algorithm != CHECKSUM_SHA256 || worker->digest);
}

static void *
work(void *argument)
{
	struct checker *checker = argument;
	struct worker worker;
	struct claim claimed;
	struct onehop_error error = {0};
	onehop_status status = ONEHOP_OK;
	if (!worker_begin(&worker, checker))
		status = fail(&error, ONEHOP_NO_MEMORY, 0, "no memory to check the bytes");
	while (!status && claim(checker, &claimed))
		status = claimed.count == 1 && job_item(checker->job, claimed.first).bytes > PIECE
				 ? check_stretch(&worker, &claimed, &error)
				 : check_run(&worker, &claimed, &error);
	if (status)
		stop(checker, &error);
	EVP_MD_CTX_free(worker.digest);
	part_file_close(&worker.file);
	free(worker.shape.dims);
	free(worker.window);
	free(worker.disk);
	free(worker.device);
	pthread_mutex_lock(&checker->lock);
	checker->running--;
	pthread_cond_signal(&checker->ended);
	pthread_mutex_unlock(&checker->lock);
	return NULL;
}

/* ------------------------------------------------------------------------------------------- */
/* The threads */

static unsigned
threads_wanted(const struct job *job)
{
	struct onehop_runtime_info info = {.size = sizeof info};
	uint64_t pieces = job->layout.bytes / PIECE + 1;
	unsigned threads = MOST_THREADS;
	if (onehop_runtime_query(job->runtime, &info) == ONEHOP_OK && info.usable_cores < threads)
		threads = info.usable_cores ? info.usable_cores : 1;
	return pieces < threads ? (unsigned)pieces : threads;
}

/* Starts up to `wanted` threads, with all signals left to the main one. Returns their number. */
static unsigned
start_threads(struct checker *checker, pthread_t *threads, unsigned wanted)
{
	unsigned started = 0;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (started < wanted) {
		pthread_mutex_lock(&checker->lock);
		checker->running++;
		pthread_mutex_unlock(&checker->lock);
		if (pthread_create(&threads[started], NULL, work, checker) != 0) {
			pthread_mutex_lock(&checker->lock);
			checker->running--;
			pthread_mutex_unlock(&checker->lock);
			break;
		}
		started++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return started;
}

/* Waits for all of them and draws meanwhile. */
static void
watch(struct checker *checker, int quiet)
{
	struct progress progress;
	progress_begin(&progress, checker->verify ? "verifying" : "checking", quiet);
	pthread_mutex_lock(&checker->lock);
	while (checker->running > 0) {
		struct timespec until;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += 100000000;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		if (pthread_cond_timedwait(&checker->ended, &checker->lock, &until) == 0)
			continue;
		pthread_mutex_unlock(&checker->lock);
		progress_draw(&progress, atomic_load(&checker->bytes_done),
			      checker->job->layout.bytes);
		pthread_mutex_lock(&checker->lock);
	}
	pthread_mutex_unlock(&checker->lock);
	progress_end(&progress);
}

static void
run(struct checker *checker, int quiet)
{
	pthread_t threads[MOST_THREADS];
	unsigned wanted = threads_wanted(checker->job);
	pthread_condattr_t clock;
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&checker->ended, &clock);
	pthread_mutex_init(&checker->lock, NULL);
	unsigned started = start_threads(checker, threads, wanted);
	if (started == 0) {
		checker->running = 1;
		work(checker);
	}
	watch(checker, quiet);
	for (unsigned i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	pthread_mutex_destroy(&checker->lock);
	pthread_cond_destroy(&checker->ended);
	pthread_condattr_destroy(&clock);
}

static int
sums_begin(struct sums *sums, enum checksum algorithm, uint64_t count)
{
	memset(sums, 0, sizeof *sums);
	sums->algorithm = algorithm;
	if (algorithm == CHECKSUM_CRC32)
		sums->crc32 = calloc(count + 1, sizeof *sums->crc32);
	if (algorithm == CHECKSUM_SHA256)
		sums->sha256 = calloc(count + 1, sizeof *sums->sha256);
	return algorithm == CHECKSUM_NONE || sums->crc32 || sums->sha256;
}

onehop_status
check(const struct job *job, enum checksum algorithm, int verify, int quiet, struct sums *sums,
      struct onehop_error *error)
{
	struct checker *checker = calloc(1, sizeof *checker);
	onehop_status status = ONEHOP_OK;
	if (!sums_begin(sums, algorithm, job->layout.count) || !checker) {
		free(checker);
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the checksums");
	}
	checker->job = job;
	checker->sums = sums;
	checker->verify = verify;
	if (algorithm == CHECKSUM_SHA256)
		checker->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
	if (algorithm == CHECKSUM_SHA256 && !checker->sha256)
		status = fail(error, ONEHOP_UNSUPPORTED, 0, "OpenSSL has no SHA-256 here");
	else
		run(checker, quiet);
	if (checker->error.status) {
		status = checker->error.status;
		*error = checker->error;
	}
	EVP_MD_free(checker->sha256);
	free(checker);
	return status;
}

void
sums_drop(struct sums *sums)
{
	free(sums->crc32);
	free(sums->sha256);
	memset(sums, 0, sizeof *sums);
}

const char *
checksum_name(enum checksum algorithm)
{
	static const char *const names[] = {"", "crc32", "sha256"};
	return names[algorithm];
}

const char *
sum_text(char text[SUM_TEXT], const struct sums *sums, uint64_t index)
{
	if (sums->algorithm == CHECKSUM_CRC32)
		snprintf(text, SUM_TEXT, "%08x", sums->crc32[index]);
	else
		for (size_t i = 0; i < 32; i++)
			snprintf(text + 2 * i, 3, "%02x", sums->sha256[index][i]);
	return text;
}
