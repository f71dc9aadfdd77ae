/* Local files: rows, read through the page cache and where that has not all of them. */
#include "base/sys.h"
#include "harness.h"
#include "model/files.h"
#include "random.h"
#include "storage/ops.h"

#include <errno.h>

#define FILE_BYTES 2000000

static uint8_t content[FILE_BYTES];
static struct oh_sys real;

/* What was asked of the kernel. */
static struct {
	uint64_t preads, preadvs;
} asked;
/* The call of preadv that gives no more than `part` bytes, or -1 with EINTR for -1. */
static uint64_t short_one;
static ssize_t part;

static ssize_t
counted_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	asked.preads++;
	return real.pread(fd, buf, bytes, offset);
}

/* As preadv, in one piece after the other. */
static ssize_t
some_preadv(int fd, const struct iovec *pieces, int count, off_t offset)
{
	ssize_t left = asked.preadvs++ == short_one ? part : FILE_BYTES, done = 0;
	if (left < 0) {
		errno = EINTR;
		return -1;
	}
	for (int i = 0; i < count && left > 0; i++) {
		size_t bytes = pieces[i].iov_len < (size_t)left ? pieces[i].iov_len : (size_t)left;
		ssize_t got = real.pread(fd, pieces[i].iov_base, bytes, offset + done);
		if (got < 0)
			return done ? done : -1;
		done += got;
		left -= got;
		if ((size_t)got < bytes)
			break;
	}
	return done;
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
	oh_sys.preadv = some_preadv;
	short_one = UINT64_MAX;
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

TEST(rows_with_small_gaps_are_read_with_them_in_few_calls)
{
	static const struct {
		uint64_t bytes, stride;
	} each[] = {{1, 8192}, {4096, 8192}, {4096, 4096 + 16384}, {6145, 6145}};
	begin();
	for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
		uint64_t bytes = each[i].bytes, stride = each[i].stride;
		for (uint64_t rows = 1; rows <= 97; rows += 96) {
			struct oh_slice_result result = read_slice(77, rows, bytes, stride);
			check_rows(&result, 77, rows, bytes, stride);
			CHECK_EQ(result.read_bytes, (rows - 1) * stride + bytes);
			CHECK_EQ(asked.preadvs + asked.preads, 1);
		}
	}
	struct oh_slice_result result = read_slice(0, 200, 1000, 7000);
	check_rows(&result, 0, 200, 1000, 7000);
	CHECK_EQ(asked.preadvs, 2);
	end();
}

TEST(a_call_for_rows_that_falls_short_anywhere_loses_none)
{
	begin();
	for (short_one = 0; short_one < 2; short_one++) {
		for (part = -1; part < 3 * 8192; part += 513) {
			struct oh_slice_result result = read_slice(512, 150, 4096, 8192);
			check_rows(&result, 512, 150, 4096, 8192);
			CHECK(asked.preads >= 1 && asked.preads <= 2 && asked.preadvs <= 3);
		}
	}
	end();
}

TEST(gaps_that_cost_more_than_a_call_are_not_read)
{
	begin();
	struct oh_slice_result result = read_slice(0, 20, 4096, 4096 + 16385);
	check_rows(&result, 0, 20, 4096, 4096 + 16385);
	CHECK_EQ(result.read_bytes, 20 * 4096);
	CHECK_EQ(asked.preads, 20);
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
		CHECK_EQ(asked.preadvs, 0);
		CHECK(result.read_bytes <= 199 * stride + bytes);
	}
	end();
}

TEST(rows_behind_the_end_of_the_file_are_a_short_read)
{
	begin();
	for (uint64_t stride = 10000; stride <= 30000; stride += 20000) {
		uint64_t bytes = stride / 2;
		struct oh_slice_result result =
			read_slice(FILE_BYTES - 10 * stride, 20, bytes, stride);
		CHECK_EQ(result.bytes, 10 * bytes);
		result = read_slice(FILE_BYTES - 9 * stride - 3000, 20, bytes, stride);
		CHECK_EQ(result.status, ONEHOP_OK);
		CHECK_EQ(result.bytes, 9 * bytes + 3000);
	}
	end();
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
