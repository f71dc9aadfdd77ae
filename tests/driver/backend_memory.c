/* The CUDA back end against the look-alike driver: devices, their memory, and pinned memory. */
#include "backend.h"

#include "base/sys.h"

#include <sys/wait.h>
#include <unistd.h>

TEST(a_device_describes_itself)
{
	struct onehop_error error = {0};
	struct onehop_device_info info = {.size = sizeof info};
	struct oh_device *device;
	CHECK(ops->count() >= 2);
	CHECK_OK(ops->open(1, &device, &error));
	CHECK_OK(ops->describe(device, &info, &error));
	CHECK_STR(info.name, "Look-alike GPU");
	CHECK_STR(info.uuid, "GPU-01ababab-abab-abab-abab-abababababab");
	CHECK_STR(info.pci, "0000:0b:00.0");
	CHECK_HOLDS(info.driver, "CUDA 1");
	CHECK_EQ(info.pointer_bits, 64);
	CHECK_EQ(info.size, sizeof info);
	CHECK(info.total_bytes >= (uint64_t)1 << 20 && info.free_bytes == info.total_bytes);
	CHECK_EQ(info.batch_copy, cu->batch_13 || cu->batch_12);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

TEST(a_device_that_is_not_there_is_refused_with_the_number_of_devices)
{
	struct onehop_error error = {0};
	struct oh_device *device = NULL;
	CHECK_FAILS(ops->open(99, &device, &error), ONEHOP_NO_DEVICE);
	CHECK_HOLDS(error.message, "no device cuda:99: the driver shows 2 devices");
	CHECK(!device);
	CHECK_NOTHING_HELD();
}

TEST(memory_is_allocated_checked_and_freed)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	struct oh_memory_facts facts;
	uint64_t at = 1, none = 1;
	CHECK_OK(ops->open(0, &device, &error));
	ops->facts(device, &facts);
	CHECK_OK(ops->alloc(device, 100000, &at, &error));
	CHECK_OK(ops->alloc(device, 0, &none, &error));
	CHECK_EQ(none, 0);
	CHECK(at && at % facts.alignment == 0);
	CHECK_OK(ops->check(device, at, 100000, &error));
	CHECK_OK(ops->check(device, at + 99999, 1, &error));
	CHECK_OK(ops->check(device, at + 5, 0, &error));
	CHECK_FAILS(ops->check(device, at + 1, 100000, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "100000 bytes at 0x");
	CHECK_HOLDS(error.message, "of 100000 bytes");
	CHECK_FAILS(ops->check(device, at, UINT64_MAX, &error), ONEHOP_INVALID_ARGUMENT);
	ops->free(device, at, 100000);
	ops->free(device, none, 0);
	CHECK_FAILS(ops->check(device, at, 1, &error), ONEHOP_INVALID_ARGUMENT);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

TEST(host_memory_is_no_device_memory_pinned_or_not)
{
	struct onehop_error error = {0};
	struct lane lane;
	char local = 0;
	CHECK_OK(lane_make(&lane, 8192, &error));
	CHECK_FAILS(ops->check(lane.device, (uintptr_t)&local, 1, &error),
		    ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "no memory that CUDA knows");
	CHECK_FAILS(ops->check(lane.device, (uintptr_t)lane.ring, 1, &error),
		    ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "pinned host memory");
	CHECK_HOLDS(error.remedy, "cuda:0");
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

TEST(memory_of_another_device_is_told_apart)
{
	struct onehop_error error = {0};
	struct oh_device *first, *second;
	uint64_t at;
	CHECK_OK(ops->open(0, &first, &error));
	CHECK_OK(ops->open(1, &second, &error));
	CHECK_OK(ops->alloc(second, 4096, &at, &error));
	CHECK_OK(ops->check(second, at, 4096, &error));
	CHECK_FAILS(ops->check(first, at, 4096, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "is memory of cuda:1, not of cuda:0");
	ops->free(second, at, 4096);
	ops->close(second);
	ops->close(first);
	CHECK_NOTHING_HELD();
}

TEST(memory_of_a_pool_is_good_though_it_has_no_context)
{
	struct onehop_error error = {0};
	struct lane lane;
	oh_cu_address at;
	struct CUctx_st *context = (struct CUctx_st *)&at;
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_EQ(cu->primary_retain(&context, 0), 0);
	CHECK_EQ(cu->ctx_push(context), 0);
	CHECK_EQ(extra.pool_alloc(&at, 4096, NULL), 0);
	CHECK_EQ(cu->pointer_attribute(&context, OH_CU_POINTER_CONTEXT, at), 0);
	CHECK(!context);
	CHECK_OK(ops->check(lane.device, at, 4096, &error));
	CHECK_FAILS(ops->check(lane.device, at, 4097, &error), ONEHOP_INVALID_ARGUMENT);
	struct oh_copy copy = {at, lane.ring, 4096};
	CHECK_OK(ops->copy(lane.device, lane.queue, lane.mark, &copy, 1, &error));
	CHECK_OK(wait_for(lane.device, lane.mark, &error));
	CHECK_EQ(extra.pool_free(at, NULL), 0);
	CHECK_EQ(cu->ctx_pop(&context), 0);
	CHECK_EQ(cu->primary_release(0), 0);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

enum { MAPPED_PIECE = 2 << 20 };

/* Reserves three pieces of address space and maps memory into those whose bit is set. */
static void
map_of_three(unsigned pieces, oh_cu_address *at)
{
	struct extra_memory properties = {.type = 1, .location = {1, 0}};
	struct extra_access access = {{1, 0}, 3};
	unsigned long long handle;
	CHECK_EQ(extra.range_reserve(at, 3 * MAPPED_PIECE, 0, 0, 0), 0);
	for (unsigned i = 0; i < 3; i++) {
		oh_cu_address piece = *at + i * MAPPED_PIECE;
		if (!(pieces & 1u << i))
			continue;
		CHECK_EQ(extra.memory_create(&handle, MAPPED_PIECE,
					     (struct CUmemAllocationProp_st *)&properties, 0),
			 0);
		CHECK_EQ(extra.memory_map(piece, MAPPED_PIECE, 0, handle, 0), 0);
		CHECK_EQ(extra.memory_release(handle), 0);
		CHECK_EQ(extra.memory_access(piece, MAPPED_PIECE,
					     (struct CUmemAccessDesc_st *)&access, 1),
			 0);
	}
}

TEST(memory_that_was_mapped_in_pieces_is_one_range)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	oh_cu_address at = 0;
	CHECK_OK(ops->open(0, &device, &error));
	map_of_three(3, &at);
	CHECK(at);
	CHECK_OK(ops->check(device, at, MAPPED_PIECE, &error));
	CHECK_OK(ops->check(device, at + 100, 2 * MAPPED_PIECE - 100, &error));
	CHECK_FAILS(ops->check(device, at + 100, 2 * MAPPED_PIECE, &error),
		    ONEHOP_INVALID_ARGUMENT);
	CHECK_FAILS(ops->check(device, at + 2 * MAPPED_PIECE, 1, &error),
		    ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(extra.memory_unmap(at, 2 * MAPPED_PIECE), 0);
	CHECK_EQ(extra.range_free(at, 3 * MAPPED_PIECE), 0);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

/* The copies would not be refused: the driver dies of them. */
TEST(a_range_with_a_hole_in_it_is_refused)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	oh_cu_address at = 0;
	CHECK_OK(ops->open(0, &device, &error));
	map_of_three(5, &at);
	CHECK(at);
	CHECK_OK(ops->check(device, at, MAPPED_PIECE, &error));
	CHECK_OK(ops->check(device, at + 2 * MAPPED_PIECE, MAPPED_PIECE, &error));
	CHECK_FAILS(ops->check(device, at, 3 * MAPPED_PIECE, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_FAILS(ops->check(device, at + MAPPED_PIECE - 1, 2, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(extra.memory_unmap(at, 3 * MAPPED_PIECE), 0);
	CHECK_EQ(extra.range_free(at, 3 * MAPPED_PIECE), 0);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

TEST(memory_whose_end_the_driver_does_not_tell_is_refused)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	uint64_t at;
	CHECK_OK(ops->open(0, &device, &error));
	CHECK_OK(ops->alloc(device, 4096, &at, &error));
	fake.fail("cuMemGetAddressRange_v2:1");
	CHECK_FAILS(ops->check(device, at, 4096, &error), ONEHOP_DRIVER);
	CHECK_EQ(fake.fail(NULL), 1);
	CHECK_HOLDS(error.message, "how far the memory");
	CHECK_OK(ops->check(device, at, 4096, &error));
	ops->free(device, at, 4096);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

TEST(too_little_device_memory_is_told_with_the_numbers)
{
	struct onehop_error error = {0};
	struct onehop_device_info info = {.size = sizeof info};
	struct oh_device *device;
	uint64_t at = 77;
	char total[32];
	CHECK_OK(ops->open(0, &device, &error));
	CHECK_OK(ops->describe(device, &info, &error));
	CHECK_FAILS(ops->alloc(device, info.total_bytes + 1, &at, &error),
		    ONEHOP_NO_DEVICE_MEMORY);
	snprintf(total, sizeof total, "its %" PRIu64 " are free", info.total_bytes);
	CHECK_HOLDS(error.message, total);
	CHECK_HOLDS(error.message, "CUDA_ERROR_OUT_OF_MEMORY");
	CHECK_EQ(error.driver_code, OH_CU_ERROR_OUT_OF_MEMORY);
	CHECK(error.remedy[0]);
	CHECK_EQ(at, 77);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

TEST(what_is_filled_is_read_back)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	const uint64_t bytes = 300001;
	char *got = calloc(1, bytes);
	uint64_t at;
	CHECK(got);
	CHECK_OK(ops->open(0, &device, &error));
	CHECK_OK(ops->alloc(device, bytes, &at, &error));
	CHECK_OK(ops->fill(device, at, bytes, 0x5A, &error));
	CHECK_OK(ops->fill(device, at + 7, 1, 0x11, &error));
	CHECK_OK(ops->fill(device, at, 0, 0x22, &error));
	CHECK_OK(ops->read(device, at, got, bytes, &error));
	CHECK(all_are(got, 7, 0x5A) && got[7] == 0x11 && all_are(got + 8, bytes - 8, 0x5A));
	CHECK_FAILS(ops->read(device, at + 1, got, bytes, &error), ONEHOP_DRIVER);
	CHECK_EQ(error.driver_code, OH_CU_ERROR_INVALID_VALUE);
	CHECK_FAILS(ops->fill(device, at + 1, bytes, 0, &error), ONEHOP_DRIVER);
	ops->free(device, at, bytes);
	ops->close(device);
	free(got);
	CHECK_NOTHING_HELD();
}

/* The look-alike itself: without this, code that touches device memory would go unseen. */
TEST(the_cpu_cannot_touch_device_memory)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	uint64_t at;
	int status = 0;
	CHECK_OK(ops->open(0, &device, &error));
	CHECK_OK(ops->alloc(device, 4096, &at, &error));
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		if (!freopen("/dev/null", "w", stderr))
			_exit(0);
		*(volatile char *)(uintptr_t)at = 1;
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
	ops->free(device, at, 4096);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

static int
no_limit(int resource, struct rlimit *limit)
{
	(void)resource;
	*limit = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
	return 0;
}

static int
small_limit(int resource, struct rlimit *limit)
{
	*limit = (struct rlimit){resource == RLIMIT_MEMLOCK ? 8192 : RLIM_INFINITY, RLIM_INFINITY};
	return 0;
}

TEST(memory_that_cannot_be_pinned_is_told_from_a_limit_on_it)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	struct oh_sys real = oh_sys;
	static char memory[65536];
	CHECK_OK(ops->open(0, &device, &error));
	oh_sys.getrlimit = no_limit;
	fake.fail("cuMemHostRegister_v2:1");
	CHECK_FAILS(ops->pin(device, memory, sizeof memory, &error), ONEHOP_NO_MEMORY);
	CHECK_HOLDS(error.message, "65536 bytes of host memory cannot be pinned");
	oh_sys.getrlimit = small_limit;
	fake.fail("cuMemHostRegister_v2:1");
	CHECK_FAILS(ops->pin(device, memory, sizeof memory, &error), ONEHOP_LIMIT);
	CHECK_HOLDS(error.remedy, "8192 bytes");
	oh_sys = real;
	fake.fail(NULL);
	CHECK_OK(ops->pin(device, memory, 0, &error));
	CHECK_OK(ops->pin(device, memory, sizeof memory, &error));
	CHECK_FAILS(ops->pin(device, memory, sizeof memory, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
	ops->unpin(device, memory, 0);
	ops->unpin(device, memory, sizeof memory);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

int
main(int argc, char **argv)
{
	return backend_main(argc, argv);
}
