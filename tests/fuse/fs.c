/* A slow server for tests: the files of one folder, read-only, through FUSE.
 *
 * usage: fs [-d US] [-c] [-a SECONDS] FOLDER MOUNTPOINT
 *
 * Each request about a file (lookup, attributes, open, read) is answered after the delay (-d, 4 ms
 * if not given) and holds no other up; a read brings 1 MiB at most. -c lets the kernel keep pages
 * (else direct_io: each read of a program is a request), -a has it keep attributes for so long (0).
 * "ready" is printed once it is mounted; SIGTERM unmounts. `.stats` in the mount tells what was
 * asked, `.control` takes commands, both at once; N counts the reads from the command on, from 1:
 *
 *   fail ERRNO N   the first byte of the N-th read is bad: each read of it fails from then on
 *   cut BYTES N    at the N-th read its file ends after so many bytes
 *   touch N        at the N-th read its file has been written to: another time of change
 *   stop N         from the N-th read on nothing is answered, until
 *   go
 *   reset          counters and faults as at the beginning
 *
 * One thread takes requests in and queues them; a few answer them when they are due, in their
 * order. It knows no folders in the folder, and takes its files as they are at the start.
 */
#define FUSE_USE_VERSION 31
#include <fuse_lowlevel.h>

#include <assert.h>
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define MOST_FILES 256
#define MOST_BYTES (1u << 20)
#define ANSWERERS 4
#define TEXT 1024

enum { STATS = FUSE_ROOT_ID + 1, CONTROL, FIRST };
enum kind { LOOKUP, ATTRIBUTES, OPEN, READ };
enum fault { NONE, FAIL, CUT, TOUCH, STOP };

struct file {
	char name[256];
	int fd;
	struct stat st;
	int bad_errno; /* 0: no byte is bad */
	off_t bad;
	struct stat as_it_was;
};

struct request {
	struct request *next;
	fuse_req_t handle;
	enum kind kind;
	fuse_ino_t ino; /* 0: there is no such file */
	struct fuse_file_info info;
	off_t offset;
	size_t bytes;
	struct timespec due;
	int held;
};

struct counters {
	uint64_t requests, reads, bytes, largest, now, most, held;
};

struct fs {
	struct file files[MOST_FILES];
	size_t count;
	uint64_t delay_ns;
	int keeps_pages;
	double keeps_attributes;
	struct fuse_session *session;
	/* The rest is under the lock. */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct request *first, *last;
	int ending, stopped;
	struct counters counters;
	enum fault fault;
	uint64_t fault_at; /* counts down with each read */
	long fault_value;
	char fault_text[320]; /* what it hit */
};

static struct fs *
fs_of(fuse_req_t handle)
{
	return fuse_req_userdata(handle);
}

static int
is_special(fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID || ino == STATS || ino == CONTROL;
}

static fuse_ino_t
find(const struct fs *fs, const char *name)
{
	if (strcmp(name, ".stats") == 0)
		return STATS;
	if (strcmp(name, ".control") == 0)
		return CONTROL;
	for (size_t i = 0; i < fs->count; i++)
		if (strcmp(name, fs->files[i].name) == 0)
			return FIRST + i;
	return 0;
}

/* --------------------------------------------------------------------------- faults, under lock */

static void
meet_fault(struct fs *fs, struct request *request)
{
	struct file *file = &fs->files[request->ino - FIRST];
	if (fs->stopped)
		request->held = 1;
	if (fs->fault == NONE || --fs->fault_at)
		return;
	snprintf(fs->fault_text, sizeof fs->fault_text, "%s %" PRId64 " %zu", file->name,
		 (int64_t)request->offset, request->bytes);
	if (fs->fault == FAIL) {
		file->bad_errno = (int)fs->fault_value;
		file->bad = request->offset;
	} else if (fs->fault == CUT) {
		file->st.st_size = fs->fault_value;
	} else if (fs->fault == TOUCH) {
		file->st.st_mtim.tv_sec++;
		file->st.st_ctim.tv_sec++;
	} else {
		fs->stopped = request->held = 1;
	}
	fs->fault = NONE;
}

static void
let_go(struct fs *fs)
{
	fs->stopped = 0;
	fs->counters.held = 0;
	pthread_cond_broadcast(&fs->cond);
}

static void
reset(struct fs *fs)
{
	uint64_t now = fs->counters.now;
	for (size_t i = 0; i < fs->count; i++) {
		fs->files[i].st = fs->files[i].as_it_was;
		fs->files[i].bad_errno = 0;
	}
	let_go(fs);
	fs->counters = (struct counters){.now = now};
	fs->fault = NONE;
	fs->fault_text[0] = '\0';
}

/* Returns 1 if it is no command. */
static int
obey(struct fs *fs, const char *text)
{
	unsigned long long at;
	long value = 0;
	enum fault fault;
	if (strcmp(text, "go") == 0) {
		let_go(fs);
		return 0;
	}
	if (strcmp(text, "reset") == 0) {
		reset(fs);
		return 0;
	}
	if (sscanf(text, "fail %ld %llu", &value, &at) == 2)
		fault = FAIL;
	else if (sscanf(text, "cut %ld %llu", &value, &at) == 2)
		fault = CUT;
	else if (sscanf(text, "touch %llu", &at) == 1)
		fault = TOUCH;
	else if (sscanf(text, "stop %llu", &at) == 1)
		fault = STOP;
	else
		return 1;
	if (at == 0 || value < 0)
		return 1;
	fs->fault = fault;
	fs->fault_at = at;
	fs->fault_value = value;
	fs->fault_text[0] = '\0';
	return 0;
}

/* ------------------------------------------------------------------------------------- answers */

static void
fill_attributes(const struct fs *fs, fuse_ino_t ino, struct stat *st)
{
	if (is_special(ino)) {
		*st = (struct stat){.st_nlink = 1};
		st->st_mode = ino == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
	} else {
		*st = fs->files[ino - FIRST].st;
	}
	st->st_ino = ino;
	st->st_blksize = MOST_BYTES;
}

static void
answer_attributes(struct fs *fs, const struct request *request)
{
	double keep = is_special(request->ino) ? 0 : fs->keeps_attributes;
	struct fuse_entry_param entry = {.ino = request->ino, .attr_timeout = keep,
					 .entry_timeout = keep};
	pthread_mutex_lock(&fs->lock);
	if (request->ino)
		fill_attributes(fs, request->ino, &entry.attr);
	pthread_mutex_unlock(&fs->lock);
	if (!request->ino)
		fuse_reply_err(request->handle, ENOENT);
	else if (request->kind == LOOKUP)
		fuse_reply_entry(request->handle, &entry);
	else
		fuse_reply_attr(request->handle, &entry.attr, keep);
}

static void
answer_open(struct fs *fs, struct request *request)
{
	request->info.direct_io = is_special(request->ino) || !fs->keeps_pages;
	request->info.keep_cache = !request->info.direct_io;
	fuse_reply_open(request->handle, &request->info);
}

static void
answer_read(struct fs *fs, const struct request *request, char *buffer)
{
	struct file *file = &fs->files[request->ino - FIRST];
	off_t offset = request->offset;
	size_t bytes = request->bytes < MOST_BYTES ? request->bytes : MOST_BYTES;
	pthread_mutex_lock(&fs->lock);
	off_t size = file->st.st_size;
	int failed = file->bad_errno && file->bad >= offset && file->bad < offset + (off_t)bytes
			     ? file->bad_errno
			     : 0;
	pthread_mutex_unlock(&fs->lock);
	if (offset >= size)
		bytes = 0;
	else if ((off_t)bytes > size - offset)
		bytes = (size_t)(size - offset);
	ssize_t got = failed ? -1 : pread(file->fd, buffer, bytes, offset);
	if (got < 0 && !failed)
		failed = errno;
	pthread_mutex_lock(&fs->lock);
	fs->counters.now--;
	if (got > 0)
		fs->counters.bytes += (uint64_t)got;
	pthread_mutex_unlock(&fs->lock);
	if (failed)
		fuse_reply_err(request->handle, failed);
	else
		fuse_reply_buf(request->handle, buffer, (size_t)got);
}

static void
answer(struct fs *fs, struct request *request, char *buffer)
{
	if (request->kind == READ)
		answer_read(fs, request, buffer);
	else if (request->kind == OPEN)
		answer_open(fs, request);
	else
		answer_attributes(fs, request);
}

/* Takes the oldest request when it is due; NULL at the end. */
static struct request *
next_due(struct fs *fs)
{
	struct request *request = NULL;
	pthread_mutex_lock(&fs->lock);
	while (!fs->ending) {
		struct timespec now;
		request = fs->first;
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (!request || (request->held && fs->stopped))
			pthread_cond_wait(&fs->cond, &fs->lock);
		else if (now.tv_sec > request->due.tv_sec ||
			 (now.tv_sec == request->due.tv_sec && now.tv_nsec >= request->due.tv_nsec))
			break;
		else
			pthread_cond_timedwait(&fs->cond, &fs->lock, &request->due);
		request = NULL;
	}
	if (request) {
		fs->first = request->next;
		if (!fs->first)
			fs->last = NULL;
		else
			pthread_cond_signal(&fs->cond);
	}
	pthread_mutex_unlock(&fs->lock);
	return request;
}

static void *
answerer(void *context)
{
	struct fs *fs = context;
	char *buffer = malloc(MOST_BYTES);
	struct request *request;
	if (!buffer)
		err(1, "no memory");
	while ((request = next_due(fs))) {
		answer(fs, request, buffer);
		free(request);
	}
	free(buffer);
	return NULL;
}

/* ------------------------------------------------------------------------------------ requests */

static void
count_read(struct fs *fs, struct request *request)
{
	struct counters *c = &fs->counters;
	c->reads++;
	c->largest = request->bytes > c->largest ? request->bytes : c->largest;
	c->now++;
	c->most = c->now > c->most ? c->now : c->most;
	meet_fault(fs, request);
	c->held += (uint64_t)request->held;
}

/* Puts it behind the others. */
static void
enqueue(struct fs *fs, const struct request *what)
{
	struct request *request = malloc(sizeof *request);
	if (!request) {
		fuse_reply_err(what->handle, ENOMEM);
		return;
	}
	*request = *what;
	clock_gettime(CLOCK_MONOTONIC, &request->due);
	uint64_t ns = (uint64_t)request->due.tv_nsec + fs->delay_ns;
	request->due.tv_sec += (time_t)(ns / 1000000000u);
	request->due.tv_nsec = (long)(ns % 1000000000u);
	pthread_mutex_lock(&fs->lock);
	fs->counters.requests++;
	if (request->kind == READ)
		count_read(fs, request);
	else
		request->held = fs->stopped;
	if (fs->last)
		fs->last->next = request;
	else
		fs->first = request;
	fs->last = request;
	pthread_cond_signal(&fs->cond);
	pthread_mutex_unlock(&fs->lock);
}

/* What is about our own two files is answered at once: they work while the rest stands still. */
static void
take_in(struct request request)
{
	struct fs *fs = fs_of(request.handle);
	if (is_special(request.ino))
		answer(fs, &request, NULL);
	else
		enqueue(fs, &request);
}

static void
on_lookup(fuse_req_t handle, fuse_ino_t parent, const char *name)
{
	fuse_ino_t ino = parent == FUSE_ROOT_ID ? find(fs_of(handle), name) : 0;
	take_in((struct request){.handle = handle, .kind = LOOKUP, .ino = ino});
}

static void
on_getattr(fuse_req_t handle, fuse_ino_t ino, struct fuse_file_info *info)
{
	take_in((struct request){.handle = handle, .kind = ATTRIBUTES, .ino = ino});
}

/* Comes when .control is opened to be written anew: there is nothing to cut. */
static void
on_setattr(fuse_req_t handle, fuse_ino_t ino, struct stat *st, int what,
	   struct fuse_file_info *info)
{
	if (ino == CONTROL)
		on_getattr(handle, ino, info);
	else
		fuse_reply_err(handle, EROFS);
}

static void
on_open(fuse_req_t handle, fuse_ino_t ino, struct fuse_file_info *info)
{
	if (ino != CONTROL && (info->flags & O_ACCMODE) != O_RDONLY)
		fuse_reply_err(handle, EROFS);
	else
		take_in((struct request){.handle = handle, .kind = OPEN, .ino = ino, .info = *info});
}

static void
tell(fuse_req_t handle, off_t offset)
{
	struct fs *fs = fs_of(handle);
	char text[TEXT];
	pthread_mutex_lock(&fs->lock);
	const struct counters *c = &fs->counters;
	int length = snprintf(text, sizeof text,
			      "requests %" PRIu64 "\nreads %" PRIu64 "\nbytes %" PRIu64
			      "\nlargest %" PRIu64 "\nmost %" PRIu64 "\nheld %" PRIu64 "\nhit %s\n",
			      c->requests, c->reads, c->bytes, c->largest, c->most, c->held,
			      fs->fault_text);
	pthread_mutex_unlock(&fs->lock);
	fuse_reply_buf(handle, text, offset ? 0 : (size_t)length);
}

static void
on_read(fuse_req_t handle, fuse_ino_t ino, size_t bytes, off_t offset, struct fuse_file_info *info)
{
	if (ino == STATS)
		tell(handle, offset);
	else if (is_special(ino))
		fuse_reply_err(handle, EINVAL);
	else
		take_in((struct request){.handle = handle, .kind = READ, .ino = ino, .offset = offset,
					 .bytes = bytes});
}

static void
on_write(fuse_req_t handle, fuse_ino_t ino, const char *data, size_t bytes, off_t offset,
	 struct fuse_file_info *info)
{
	struct fs *fs = fs_of(handle);
	char text[TEXT];
	if (ino != CONTROL || bytes >= sizeof text) {
		fuse_reply_err(handle, EINVAL);
		return;
	}
	memcpy(text, data, bytes);
	text[bytes] = '\0';
	pthread_mutex_lock(&fs->lock);
	int failed = obey(fs, text);
	pthread_mutex_unlock(&fs->lock);
	if (failed)
		fuse_reply_err(handle, EINVAL);
	else
		fuse_reply_write(handle, bytes);
}

/* An entry at a time: this is called with the offset of the next one until there is none. */
static void
on_readdir(fuse_req_t handle, fuse_ino_t ino, size_t bytes, off_t offset,
	   struct fuse_file_info *info)
{
	struct fs *fs = fs_of(handle);
	char buffer[512];
	struct stat st = {.st_mode = S_IFREG};
	if ((uint64_t)offset >= fs->count) {
		fuse_reply_buf(handle, NULL, 0);
		return;
	}
	st.st_ino = FIRST + (fuse_ino_t)offset;
	size_t need = fuse_add_direntry(handle, buffer, sizeof buffer, fs->files[offset].name, &st,
					offset + 1);
	assert(need <= sizeof buffer);
	if (need > bytes)
		fuse_reply_err(handle, EINVAL);
	else
		fuse_reply_buf(handle, buffer, need);
}

static void
on_statfs(fuse_req_t handle, fuse_ino_t ino)
{
	struct statvfs st = {.f_bsize = MOST_BYTES, .f_frsize = 4096, .f_namemax = 255};
	fuse_reply_statfs(handle, &st);
}

/* As many requests may wait as the kernel likes to send. */
static void
on_init(void *context, struct fuse_conn_info *conn)
{
	conn->max_read = MOST_BYTES;
	conn->max_background = 64;
	conn->congestion_threshold = 64;
	puts("ready");
	fflush(stdout);
}

static const struct fuse_lowlevel_ops operations = {
	.init = on_init,
	.lookup = on_lookup,
	.getattr = on_getattr,
	.setattr = on_setattr,
	.open = on_open,
	.read = on_read,
	.write = on_write,
	.readdir = on_readdir,
	.statfs = on_statfs,
};

/* -------------------------------------------------------------------------------- start and end */

static void
take_files(struct fs *fs, const char *folder)
{
	DIR *dir = opendir(folder);
	struct dirent *entry;
	if (!dir)
		err(1, "%s", folder);
	while ((entry = readdir(dir))) {
		struct file *file = &fs->files[fs->count];
		if (entry->d_name[0] == '.')
			continue;
		if (fs->count == MOST_FILES)
			errx(1, "%s: more than %d files", folder, MOST_FILES);
		snprintf(file->name, sizeof file->name, "%s", entry->d_name);
		file->fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
		if (file->fd < 0 || fstat(file->fd, &file->st) < 0)
			err(1, "%s/%s", folder, entry->d_name);
		file->as_it_was = file->st;
		fs->count++;
	}
	closedir(dir);
}

static void
end_answerers(struct fs *fs, pthread_t *threads)
{
	pthread_mutex_lock(&fs->lock);
	fs->ending = 1;
	pthread_cond_broadcast(&fs->cond);
	pthread_mutex_unlock(&fs->lock);
	for (int i = 0; i < ANSWERERS; i++)
		pthread_join(threads[i], NULL);
}

/* Mounts, serves until a signal comes, unmounts. Requests that wait by then end with the mount. */
static int
serve(struct fs *fs, char *program, const char *mountpoint)
{
	char *words[] = {program, (char[]){"-omax_read=1048576,allow_other,fsname=onehop-test"}, NULL};
	struct fuse_args args = FUSE_ARGS_INIT(2, words);
	pthread_t threads[ANSWERERS];
	fs->session = fuse_session_new(&args, &operations, sizeof operations, fs);
	if (!fs->session || fuse_set_signal_handlers(fs->session) ||
	    fuse_session_mount(fs->session, mountpoint))
		errx(1, "%s: cannot be mounted", mountpoint);
	for (int i = 0; i < ANSWERERS; i++)
		if (pthread_create(&threads[i], NULL, answerer, fs))
			errx(1, "no threads");
	int status = fuse_session_loop(fs->session);
	fuse_session_unmount(fs->session);
	end_answerers(fs, threads);
	fuse_remove_signal_handlers(fs->session);
	fuse_session_destroy(fs->session);
	return status < 0;
}

int
main(int argc, char **argv)
{
	static struct fs fs = {.delay_ns = 4000000};
	pthread_condattr_t monotonic;
	int letter;
	while ((letter = getopt(argc, argv, "d:ca:")) != -1) {
		if (letter == 'd')
			fs.delay_ns = strtoull(optarg, NULL, 10) * 1000;
		else if (letter == 'c')
			fs.keeps_pages = 1;
		else if (letter == 'a')
			fs.keeps_attributes = strtod(optarg, NULL);
		else
			return 2;
	}
	if (argc - optind != 2)
		errx(2, "usage: fs [-d US] [-c] [-a SECONDS] FOLDER MOUNTPOINT");
	pthread_mutex_init(&fs.lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&fs.cond, &monotonic);
	take_files(&fs, argv[optind]);
	return serve(&fs, argv[0], argv[optind + 1]);
}
