/* Local files: rows, read through the page cache and where that has not all of them. */
#include "base/sys.h"
#include "harness.h"
#include "model/files.h"
#include "random.h"
#include "storage/ops.h"

#include <errno.h>
#include <fcntl.h>

#define FILE_BYTES 2000000

static uint8_t content[FILE_BYTES];
static struct oh_sys real;

/* What was asked of the kernel. */
static struct {
	uint64_t preads, cached, advices;
	off_t from, to; /* of the last advice */
} asked;
/* Calls of pread_cached that give all, before one that gives `part` and others that give nothing. */
static uint64_t whole_ones;
static ssize_t part;

static ssize_t
counted_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	asked.preads++;
	return real.pread(fd, buf, bytes, offset);
}

static ssize_t
some_cached(int fd, void *buf, size_t bytes, off_t offset)
{
	uint64_t number = asked.cached++;
	if (number < whole_ones)
		return real.pread(fd, buf, bytes, offset);
	if (number == whole_ones && part >= 0)
		return real.pread(fd, buf, (size_t)part, offset);
	errno = EAGAIN;
	return -1;
}

static int
counted_advice(int fd, off_t offset, off_t bytes, int advice)
{
	(void)fd;
	if (advice != POSIX_FADV_WILLNEED)
		return EINVAL;
	asked.advices++;
	asked.from = offset;
	asked.to = offset + bytes;
	return 0;
}

/* One slice, taken once. */
struct one {
	struct oh_slice_source source; /* first */
	struct oh_slice slice;
	struct oh_slice_result result;
	int taken;
};

static int
take(struct oh_slice_source *source, struct oh_slice *slice)
{
	struct one *one = (struct one *)source;
	*slice = one->slice;
	return !one->taken++;
}

static void
give(struct oh_slice_source *source, const struct oh_slice *slice,
     const struct oh_slice_result *result)
{
	(void)slice;
	((struct one *)source)->result = *result;
}

static struct oh_storage_file *file;
static uint8_t memory[FILE_BYTES];

static void
begin(void)
{
	struct random r = random_init(1);
	struct onehop_error error;
	for (size_t i = 0; i < FILE_BYTES; i++)
		content[i] = (uint8_t)random_next(&r);
	write_file(scratch("rows"), content, FILE_BYTES);
	CHECK_EQ(oh_storage_local.open(scratch("rows"), &file, &error), ONEHOP_OK);
	memset(&asked, 0, sizeof asked);
	real = oh_sys;
	oh_sys.pread = counted_pread;
	oh_sys.pread_cached = some_cached;
	oh_sys.posix_fadvise = counted_advice;
	part = -1;
}

static void
end(void)
{
	oh_sys = real;
	oh_storage_local.close(file);
}

static struct oh_slice_result
read_slice(uint64_t offset, uint64_t rows, uint64_t row_bytes, uint64_t row_stride)
{
	struct one one = {
		.source = {take, give},
		.slice = {.file = file, .offset = offset, .row_bytes = row_bytes, .rows = rows,
			  .row_stride = row_stride, .memory = memory},
	};
	memset(memory, 0xA5, sizeof memory);
	memset(&asked, 0, sizeof asked);
	oh_storage_local.read(&one.source);
	return one.result;
}

static void
check_rows(const struct oh_slice_result *result, uint64_t offset, uint64_t rows, uint64_t row_bytes,
	   uint64_t row_stride)
{
	CHECK_EQ(result->status, ONEHOP_OK);
	CHECK_EQ(result->bytes, rows * row_bytes);
	for (uint64_t row = 0; row < rows; row++)
		CHECK(memcmp(memory + row * row_bytes, content + offset + row * row_stride,
			     row_bytes) == 0);
}

TEST(rows_in_the_page_cache_that_lie_far_apart_are_read_without_their_gaps)
{
	begin();
	whole_ones = UINT64_MAX;
	for (uint64_t bytes = 1; bytes <= 4096; bytes *= 4) {
		struct oh_slice_result result = read_slice(77, 100, bytes, 8192);
		check_rows(&result, 77, 100, bytes, 8192);
		CHECK_EQ(result.read_bytes, 100 * bytes);
		CHECK_EQ(asked.cached, 100);
		CHECK_EQ(asked.preads + asked.advices, 0);
	}
	end();
}

TEST(rows_that_have_to_be_waited_for_are_asked_for_at_once_with_their_gaps)
{
	begin();
	for (whole_ones = 0; whole_ones < 50; whole_ones += 7) {
		for (part = -1; part < 4096; part += 4095) {
			struct oh_slice_result result = read_slice(512, 50, 4096, 8192);
			check_rows(&result, 512, 50, 4096, 8192);
			CHECK_EQ(result.read_bytes, 50 * 4096);
			CHECK_EQ(asked.cached, whole_ones + 1);
			CHECK_EQ(asked.preads, 50 - whole_ones);
			CHECK_EQ(asked.advices, 1);
			CHECK_EQ(asked.from, 512 + (off_t)whole_ones * 8192);
			CHECK_EQ(asked.to, 512 + 49 * 8192 + 4096);
		}
	}
	end();
}

TEST(gaps_that_a_disk_would_rather_skip_are_not_asked_for)
{
	begin();
	whole_ones = 0;
	struct oh_slice_result result = read_slice(0, 20, 4096, 4096 + 32769);
	check_rows(&result, 0, 20, 4096, 4096 + 32769);
	CHECK_EQ(asked.cached, 1);
	CHECK_EQ(asked.preads, 20);
	CHECK_EQ(asked.advices, 0);
	end();
}

TEST(rows_that_lie_near_each_other_are_read_with_their_gaps_in_few_calls)
{
	static const struct {
		uint64_t bytes, stride;
	} each[] = {{1000, 1500}, {1, 6144}, {6000, 6144}};
	begin();
	for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
		uint64_t bytes = each[i].bytes, stride = each[i].stride;
		struct oh_slice_result result = read_slice(5, 200, bytes, stride);
		check_rows(&result, 5, 200, bytes, stride);
		CHECK(asked.preads <= 20);
		CHECK_EQ(asked.cached, 0);
		CHECK(result.read_bytes <= 199 * stride + bytes);
	}
	end();
}

TEST(rows_behind_the_end_of_the_file_are_a_short_read)
{
	begin();
	for (whole_ones = 0; whole_ones <= 40; whole_ones += 20) {
		struct oh_slice_result result = read_slice(FILE_BYTES - 100000, 20, 5000, 10000);
		CHECK_EQ(result.bytes, 10 * 5000);
		result = read_slice(FILE_BYTES - 93000, 20, 5000, 10000);
		CHECK_EQ(result.status, ONEHOP_OK);
		CHECK_EQ(result.bytes, 9 * 5000 + 3000);
	}
	end();
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
