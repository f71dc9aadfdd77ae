/* Opening a dataset and feeding a part of it, with each system call, allocation and start of a thread
 * failing in turn: it says so, or does without, and leaves nothing behind. TEST_DEVICE names the
 * device.
 */
#include "fault/allocation.h"
#include "fault/fault.h"

#include "shards.h"

#include <dlfcn.h>

static const char *device;
static struct onehop_error error;
static const char *folder;
static const struct recipe recipe = {.shards = 3, .samples = 40, .fields = 2, .bytes = {3000, 40},
				     .vary = 900, .episodes = 2};

/* What a round came to: its first failure, and whether anything that was given was wrong. */
struct outcome {
	onehop_status status;
	uint64_t rows;
	int wrong;
};

static void
check_rows(const struct onehop_group *group, struct outcome *o)
{
	static uint8_t bytes[4096];
	for (uint64_t cell = 0; cell < 2 * group->rows && !o->status; cell++) {
		uint64_t sample = group->samples[cell % group->rows], field = cell / group->rows;
		uint64_t count = payload_bytes(&recipe, sample, field);
		o->wrong |= group->bytes[cell] != count;
		if (o->wrong)
			return;
		struct onehop_buffer *buffer = field ? group->host_buffer : group->device_buffer;
		o->status = onehop_buffer_read(buffer, group->offsets[cell], bytes, count, &error);
		for (uint64_t i = 0; i < count && !o->status; i++)
			o->wrong |= bytes[i] != payload(sample, field, i);
	}
	o->rows += group->rows;
}

static void
feed_some(struct onehop_dataset *dataset, struct onehop_order *order, struct outcome *o)
{
	static const struct onehop_feed_field fields[] = {{0, 0}, {1, 1}};
	struct onehop_feed_options options;
	struct onehop_group group = {.size = sizeof group};
	struct onehop_feed *feed;
	onehop_feed_options_init(&options);
	options.device = device;
	options.fields = fields;
	options.field_count = 2;
	options.ring_bytes = 320 << 10;
	options.verify = 1;
	o->status = onehop_feed_create(dataset, order, &options, &feed, &error);
	if (o->status)
		return;
	for (int i = 0; i < 3 && !o->status; i++) {
		o->status = onehop_feed_next(feed, ONEHOP_FOREVER, &group, &error);
		if (o->status)
			break;
		check_rows(&group, o);
		onehop_status status = onehop_feed_release(feed, group.slot, 0, 0, &error);
		o->status = o->status ? o->status : status;
	}
	onehop_feed_destroy(feed);
}

static struct outcome
round_of(struct onehop_runtime *runtime)
{
	struct onehop_order_options options;
	struct onehop_dataset *dataset;
	struct onehop_order *order;
	struct outcome o = {0};
	memset(&error, 0, sizeof error);
	o.status = onehop_dataset_open(runtime, &folder, 1, &dataset, &error);
	if (o.status)
		return o;
	onehop_order_options_init(&options);
	options.batch = 8;
	o.status = onehop_order_create(dataset, &options, &order, &error);
	if (!o.status) {
		feed_some(dataset, order, &o);
		onehop_order_destroy(order);
	}
	onehop_dataset_close(dataset);
	return o;
}

/* Rounds until nothing is struck any more. */
static void
strike_each(void (*arm)(long number), long (*disarm)(void), const char *what, long least)
{
	long number = 0, struck, failed = 0;
	do {
		struct onehop_runtime *runtime;
		CHECK_EQ(onehop_runtime_create(NULL, &runtime, &error), ONEHOP_OK);
		arm(number);
		struct outcome o = round_of(runtime);
		struck = disarm();
		if (o.wrong || (o.status && !error.message[0]) || (!o.status && !o.rows) ||
		    (o.status && !struck))
			printf("# %s %ld: %s: %s\n", what, number, onehop_status_name(o.status),
			       error.message);
		CHECK(!o.wrong);
		CHECK(!o.status || (struck && error.message[0]));
		CHECK(o.status || o.rows);
		/* The same runtime goes on. */
		o = round_of(runtime);
		CHECK(!o.status && !o.wrong);
		onehop_runtime_destroy(runtime);
		failed += struck > 0;
		number++;
	} while (struck);
	CHECK(failed >= least);
}

static void
arm_allocation(long number)
{
	allocation_arm(number, 0);
}

TEST(each_allocation_and_each_start_of_a_thread_may_fail)
{
	strike_each(arm_allocation, allocation_disarm, "allocation", 60);
}

static enum fault_call call;

static void
arm_call(long number)
{
	fault_arm((struct fault){call, FAULT_FAILS, number, 0, EIO, 0});
}

static long
disarm_call(void)
{
	return fault_disarm().count;
}

TEST(each_system_call_may_fail)
{
	static const enum fault_call calls[] = {FAULT_open, FAULT_fstat, FAULT_stat, FAULT_opendir,
						FAULT_readdir, FAULT_pread, FAULT_mmap};
	fault_install();
	for (size_t i = 0; i < sizeof calls / sizeof *calls && !test_failed; i++) {
		call = calls[i];
		strike_each(arm_call, disarm_call, fault_names[call], 1);
	}
}

/* The look-alike driver's, where the device is its. */
static int (*fail_driver)(const char *rule);
static const char *function;

static void
arm_driver(long number)
{
	char rule[64];
	snprintf(rule, sizeof rule, "%s:%ld", function, number + 1);
	fail_driver(rule);
}

static long
disarm_driver(void)
{
	return fail_driver(NULL);
}

/* Pinned memory is done without, all else is told. */
TEST(each_driver_call_may_fail)
{
	static const char *const functions[] = {"cuMemHostRegister_v2", "cuMemcpyDtoHAsync_v2",
						"cuStreamCreate", "cuEventCreate", "cuEventRecord",
						"cuEventQuery"};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (strcmp(device, "host") == 0 || !library)
		SKIP("the device is the host");
	*(void **)&fail_driver = dlsym(library, "fake_cuda_fail");
	need(fail_driver != NULL, "the look-alike driver");
	for (size_t i = 0; i < sizeof functions / sizeof *functions && !test_failed; i++) {
		function = functions[i];
		strike_each(arm_driver, disarm_driver, function, 2);
	}
}

int
main(int argc, char **argv)
{
	device = getenv("TEST_DEVICE");
	if (!device)
		device = "host";
	folder = make_shards("fault", &recipe);
	return test_main(argc, argv);
}
