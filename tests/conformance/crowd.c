/* Loads that are larger than the ring: each process that runs some holds one name while it does, and
 * none afterwards, however many run at once and however they end. On the GPU that TEST_DEVICE names.
 */
#include "harness.h"
#include "machine/crowd.h"

#include <onehop/onehop.h>

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
/* The default ring is 64 MiB at most. */
#define BYTES (66 * MIB)
#define LOADS 3

static struct onehop_runtime *runtime;
static struct onehop_file *source;
static char path[] = "/tmp/onehop-crowd-XXXXXX";

/* A hole with one byte in each MiB. */
static int
make_file(void)
{
	int fd = mkstemp(path), failed = fd < 0 || ftruncate(fd, (off_t)BYTES) < 0;
	for (uint64_t at = 0; !failed && at < BYTES; at += MIB) {
		uint8_t mark = (uint8_t)(at / MIB + 1);
		failed = pwrite(fd, &mark, 1, (off_t)at) != 1;
	}
	if (fd >= 0)
		close(fd);
	return failed;
}

struct loader {
	struct onehop_error error;
	uint32_t most; /* names that were taken while it ran */
	int wrong;
	int cancels;
};

static onehop_status
load_once(struct loader *loader, struct onehop_buffer *buffer)
{
	struct onehop_extent extent = {source, 0, BYTES, 1, 0, buffer, 0, NULL};
	struct onehop_plan *plan = NULL;
	struct onehop_transfer *transfer = NULL;
	struct onehop_error *error = &loader->error;
	onehop_status status = onehop_plan_create(runtime, &extent, 1, &plan, error);
	if (!status)
		status = onehop_transfer_prepare(plan, &transfer, error);
	if (!status)
		status = onehop_transfer_start(transfer, NULL, error);
	uint32_t taken = oh_crowd_count();
	loader->most = taken > loader->most ? taken : loader->most;
	if (!status && loader->cancels)
		onehop_transfer_cancel(transfer);
	if (!status)
		status = onehop_transfer_wait(transfer, ONEHOP_FOREVER, NULL, error);
	onehop_transfer_destroy(transfer);
	onehop_plan_destroy(plan);
	return status;
}

static void *
load(void *argument)
{
	struct loader *loader = argument;
	struct onehop_buffer *buffer = NULL;
	onehop_status status = onehop_buffer_alloc(runtime, "cuda:0", BYTES, &buffer, &loader->error);
	for (int i = 0; i < LOADS && !status; i++) {
		status = load_once(loader, buffer);
		for (uint64_t at = 0; at < BYTES && !status; at += MIB) {
			uint8_t got = 0;
			status = onehop_buffer_read(buffer, at, &got, 1, &loader->error);
			loader->wrong |= got != at / MIB + 1;
		}
		if (loader->cancels && status == ONEHOP_CANCELLED)
			status = ONEHOP_OK;
	}
	loader->wrong |= status != ONEHOP_OK;
	onehop_buffer_free(buffer);
	return NULL;
}

TEST(a_process_has_one_name_while_it_loads_and_none_afterwards)
{
	struct loader loaders[3] = {{.cancels = 0}, {.cancels = 0}, {.cancels = 1}};
	pthread_t threads[3];
	/* Names are of a network namespace: in one of its own nobody else has any. */
	if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
		SKIP("no network namespace of its own can be had");
	CHECK_EQ(make_file(), 0);
	CHECK_EQ(onehop_runtime_create(NULL, &runtime, &loaders[0].error), ONEHOP_OK);
	CHECK_EQ(onehop_file_open(runtime, path, &source, &loaders[0].error), ONEHOP_OK);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, load, &loaders[i]), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 2; i++) {
		if (loaders[i].wrong)
			printf("# %s\n", loaders[i].error.message);
		CHECK(!loaders[i].wrong);
	}
	CHECK_EQ(loaders[0].most, 1);
	CHECK_EQ(oh_crowd_count(), 0);
	onehop_file_close(source);
	unlink(path);
	onehop_runtime_destroy(runtime);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
