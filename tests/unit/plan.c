/* The plan: a pure function of extents and facts. */
#include "engine/plan.h"
#include "harness.h"

static struct oh_file_facts files[] = {
	{.path = "a", .storage = {.bytes = UINT64_C(1) << 40, .alignment = 1}},
	{.path = "b", .storage = {.bytes = 1000, .alignment = 1}},
};
static struct oh_buffer_facts buffers[] = {{0x10000, UINT64_C(1) << 40}, {0x7000, 4096}};

static struct oh_plan_facts
facts(uint32_t caps)
{
	return (struct oh_plan_facts){
		.files = files, .file_count = 2, .buffers = buffers, .buffer_count = 2,
		.memory = {.caps = caps, .alignment = 256, .copy_modulus = 1},
		.forced_route = ONEHOP_AUTO,
		.cache = ONEHOP_AUTO,
		.memory_bytes = 1 << 20,
	};
}

static struct oh_extent
range(uint64_t offset, uint64_t bytes, uint64_t to)
{
	return (struct oh_extent){.offset = offset, .row_bytes = bytes, .rows = 1, .buffer_offset = to};
}

static struct oh_plan_facts gpu, host;
static struct oh_plan plan;
static struct onehop_error error;

static onehop_status
build(const struct oh_extent *extents, uint64_t count, const struct oh_plan_facts *with)
{
	return oh_plan_build(extents, count, with, &plan, &error);
}

TEST(neighbours_on_storage_and_in_memory_are_one_segment_and_one_piece)
{
	struct oh_extent e[] = {range(200, 100, 1100), range(100, 100, 1000), range(300, 50, 1200)};
	CHECK_EQ(build(e, 3, &gpu), ONEHOP_OK);
	CHECK_EQ(plan.segment_count, 1);
	CHECK_EQ(plan.piece_count, 1);
	CHECK_EQ(plan.part_count, 3);
	CHECK_EQ(plan.segments[0].offset, 100);
	CHECK_EQ(plan.segments[0].bytes, 250);
	CHECK_EQ(plan.parts[0].extent, 1);
	CHECK_EQ(plan.bytes, 250);
	CHECK_EQ(plan.read_bytes, 250);
	CHECK_EQ(plan.reasons, 0);
	oh_plan_free(&plan);
}

TEST(scattered_destinations_are_pieces_of_one_segment)
{
	struct oh_extent e[] = {range(0, 100, 5000), range(100, 100, 0), range(200, 100, 100)};
	CHECK_EQ(build(e, 3, &gpu), ONEHOP_OK);
	CHECK_EQ(plan.segment_count, 1);
	CHECK_EQ(plan.piece_count, 2);
	CHECK_EQ(plan.pieces[1].bytes, 200);
	CHECK_EQ(plan.reasons, 0);
	oh_plan_free(&plan);
	struct oh_plan_facts old = facts(0);
	CHECK_EQ(build(e, 3, &old), ONEHOP_OK);
	CHECK_EQ(plan.reasons, ONEHOP_REASON_NO_BATCH_COPY);
	oh_plan_free(&plan);
}

TEST(small_gaps_are_read_over_and_large_ones_cut)
{
	struct oh_extent e[] = {range(0, 100, 0), range(132, 100, 128), range(9000, 10, 300)};
	CHECK_EQ(build(e, 3, &gpu), ONEHOP_OK);
	CHECK_EQ(plan.segment_count, 2);
	CHECK_EQ(plan.segments[0].bytes, 232);
	CHECK_EQ(plan.segments[0].pieces, 2);
	CHECK_EQ(plan.bytes, 210);
	CHECK_EQ(plan.read_bytes, 242);
	oh_plan_free(&plan);
}

TEST(an_addressable_device_is_read_into_directly_unless_its_pieces_are_small)
{
	struct oh_extent large[] = {range(0, 1 << 20, 0), range(1 << 20, 1 << 20, 4 << 20)};
	CHECK_EQ(build(large, 2, &host), ONEHOP_OK);
	CHECK_EQ(plan.segments[0].staged, 0);
	CHECK_EQ(plan.reasons, 0);
	oh_plan_free(&plan);
	struct oh_extent small[] = {range(0, 10, 0), range(10, 10, 4000)};
	CHECK_EQ(build(small, 2, &host), ONEHOP_OK);
	CHECK_EQ(plan.segments[0].staged, 1);
	CHECK_EQ(plan.reasons, ONEHOP_REASON_SMALL_PIECES);
	oh_plan_free(&plan);
	CHECK_EQ(build(small, 1, &host), ONEHOP_OK);
	CHECK_EQ(plan.segments[0].staged, 0);
	oh_plan_free(&plan);
}

TEST(rows_are_a_segment_of_their_own_and_rows_without_gaps_are_none)
{
	struct oh_extent e[] = {
		{.offset = 16, .row_bytes = 8, .rows = 4, .row_stride = 32, .buffer_offset = 0},
		{.offset = 1024, .row_bytes = 8, .rows = 4, .row_stride = 8, .buffer_offset = 32},
	};
	CHECK_EQ(build(e, 2, &gpu), ONEHOP_OK);
	CHECK_EQ(plan.segment_count, 2);
	CHECK_EQ(plan.segments[0].rows, 4);
	CHECK_EQ(plan.segments[0].bytes, 32);
	CHECK_EQ(plan.segments[1].rows, 1);
	CHECK_EQ(plan.segments[1].bytes, 32);
	oh_plan_free(&plan);
}

/* Of 8 bytes. */
static struct oh_extent
rows(uint64_t offset, uint64_t count, uint64_t stride, uint64_t to)
{
	return (struct oh_extent){.offset = offset, .row_bytes = 8, .rows = count,
				  .row_stride = stride, .buffer_offset = to};
}

TEST(rows_that_go_on_are_one_segment_with_a_part_for_each_extent)
{
	struct oh_extent e[] = {
		rows(16, 4, 32, 0), rows(16 + 4 * 32, 3, 32, 32), rows(16 + 7 * 32, 2, 32, 99),
		/* A row later, and another stride. */
		rows(16 + 10 * 32, 2, 32, 56), rows(16 + 12 * 32, 2, 40, 72),
	};
	CHECK_EQ(build(e, 5, &gpu), ONEHOP_OK);
	CHECK_EQ(plan.segment_count, 3);
	CHECK_EQ(plan.segments[0].rows, 9);
	CHECK_EQ(plan.segments[0].bytes, 72);
	CHECK_EQ(plan.segments[0].pieces, 2);
	CHECK_EQ(plan.pieces[0].bytes, 56);
	CHECK_EQ(plan.pieces[1].position, plan.pieces[0].position + 56);
	CHECK_EQ(plan.pieces[1].buffer_offset, 99);
	CHECK_EQ(plan.part_count, 5);
	CHECK_EQ(plan.parts[1].position, plan.parts[0].position + 32);
	CHECK_EQ(plan.bytes, 8 * 13);
	oh_plan_free(&plan);
}

TEST(small_gaps_between_rows_count_as_read)
{
	struct oh_file_facts file = {.path = "f", .storage = {.bytes = UINT64_C(1) << 40, .alignment = 1,
							      .row_gap = 950}};
	static const struct {
		uint64_t row, stride, read;
	} tries[] = {{50, 200, 650}, {50, 1000, 3050}, {50, 1001, 200}, {9000, 9950, 38850}, {50, 50, 200}};
	struct oh_plan_facts with = gpu;
	with.files = &file;
	for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
		struct oh_extent rows = {.row_bytes = tries[i].row, .rows = 4,
					 .row_stride = tries[i].stride};
		CHECK_EQ(build(&rows, 1, &with), ONEHOP_OK);
		CHECK_EQ(plan.read_bytes, tries[i].read);
		oh_plan_free(&plan);
	}
}

TEST(extents_of_no_bytes_are_set_aside)
{
	struct oh_extent e[] = {range(0, 0, 0), range(0, 10, 0), range(UINT64_MAX, 0, UINT64_MAX)};
	CHECK_EQ(build(e, 3, &gpu), ONEHOP_OK);
	CHECK_EQ(plan.empty_count, 2);
	CHECK_EQ(plan.empty[1], 2);
	CHECK_EQ(plan.part_count, 1);
	oh_plan_free(&plan);
	CHECK_EQ(build(e, 0, &gpu), ONEHOP_OK);
	CHECK_EQ(plan.segment_count, 0);
	oh_plan_free(&plan);
}

TEST(a_range_that_leaves_its_file_or_buffer_is_refused_by_name)
{
	struct oh_extent past = range(990, 11, 0);
	past.file = 1;
	past.name = "blk.0.w";
	CHECK_EQ(build(&past, 1, &gpu), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "blk.0.w");
	CHECK_HOLDS(error.message, "past the end");
	struct oh_extent rows = {.offset = 0, .row_bytes = 8, .rows = 1 << 20, .row_stride = UINT64_C(1) << 60};
	CHECK_EQ(build(&rows, 1, &gpu), ONEHOP_INVALID_ARGUMENT);
	struct oh_extent wide = {.row_bytes = UINT64_C(1) << 40, .rows = UINT64_C(1) << 40, .row_stride = 0};
	CHECK_EQ(build(&wide, 1, &gpu), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "overflow");
	struct oh_extent backwards = {.row_bytes = 8, .rows = 2, .row_stride = 4};
	CHECK_EQ(build(&backwards, 1, &gpu), ONEHOP_INVALID_ARGUMENT);
	struct oh_extent full = range(0, 10, 4090);
	full.buffer = 1;
	CHECK_EQ(build(&full, 1, &gpu), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "do not fit");
	struct oh_extent wraps = range(0, 10, UINT64_MAX - 4);
	CHECK_EQ(build(&wraps, 1, &gpu), ONEHOP_INVALID_ARGUMENT);
}

TEST(extents_of_more_than_2_to_the_62_bytes_in_all_are_refused)
{
	uint64_t half = UINT64_C(1) << 61;
	struct oh_file_facts file = {.path = "huge", .storage = {.bytes = half}};
	struct oh_buffer_facts large[3] = {{.bytes = half}, {.bytes = half}, {.bytes = half}};
	struct oh_plan_facts huge = host;
	struct oh_extent e[3] = {range(0, half, 0), range(0, half, 0), range(0, 1, 0)};
	huge.files = &file;
	huge.file_count = 1;
	huge.buffers = large;
	huge.buffer_count = 3;
	for (uint32_t i = 0; i < 3; i++)
		e[i].buffer = i;
	CHECK_EQ(build(e, 2, &huge), ONEHOP_OK);
	oh_plan_free(&plan);
	CHECK_EQ(build(e, 3, &huge), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "over 2^62 bytes");
}

TEST(destinations_that_overlap_are_refused_by_both_names)
{
	struct oh_extent e[] = {range(0, 100, 50), range(500, 100, 0)};
	e[0].name = "first";
	e[1].name = "second";
	CHECK_EQ(build(e, 2, &gpu), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "first");
	CHECK_HOLDS(error.message, "second");
}

TEST(the_same_source_may_go_to_two_places)
{
	struct oh_extent e[] = {range(0, 100, 0), range(0, 100, 100), range(50, 100, 200)};
	CHECK_EQ(build(e, 3, &gpu), ONEHOP_OK);
	CHECK_EQ(plan.bytes, 300);
	CHECK_EQ(plan.segment_count, 3);
	oh_plan_free(&plan);
}

TEST(positions_keep_the_destinations_address_modulo_what_copies_like)
{
	struct oh_plan_facts with = gpu;
	with.memory.copy_modulus = 256;
	struct oh_extent e[] = {range(8, 1 << 20, 16), range(UINT64_C(1) << 30, 1 << 20, (2 << 20) + 48)};
	CHECK_EQ(build(e, 2, &with), ONEHOP_OK);
	CHECK_EQ(plan.segment_count, 2);
	for (uint64_t i = 0; i < 2; i++)
		CHECK_EQ(plan.segments[i].position % 256,
			 (buffers[0].address + plan.pieces[i].buffer_offset) % 256);
	oh_plan_free(&plan);
}

TEST(a_forced_route_is_a_reason)
{
	struct oh_plan_facts forced = gpu;
	struct oh_extent e = range(0, 100, 0);
	forced.forced_route = ONEHOP_ROUTE_BUFFERED;
	CHECK_EQ(build(&e, 1, &forced), ONEHOP_OK);
	CHECK_EQ(plan.segments[0].reasons, ONEHOP_REASON_ROUTE_FORCED);
	oh_plan_free(&plan);
}

/* File a in chunks of 64 KiB: here, away, away, not known, here, and so on. */
static uint8_t residence[] = {OH_HERE, OH_AWAY, OH_AWAY, OH_NOT_KNOWN, OH_HERE, OH_AWAY, OH_HERE};
#define CHUNK (64 << 10)

static struct oh_plan_facts
half_resident(uint64_t memory_bytes)
{
	static struct oh_file_facts half[2];
	struct oh_plan_facts with = gpu;
	half[0] = files[0];
	half[1] = files[1];
	half[0].residence = residence;
	half[0].chunk_bytes = CHUNK;
	half[0].direct_alignment = 4096;
	with.files = half;
	with.memory_bytes = memory_bytes;
	return with;
}

TEST(absent_bytes_that_fit_in_half_of_the_memory_are_read_through_the_page_cache)
{
	struct oh_plan_facts with = half_resident(8 * CHUNK);
	struct oh_extent e = range(100, 7 * CHUNK - 100, 0);
	CHECK_EQ(build(&e, 1, &with), ONEHOP_OK);
	static const uint32_t reasons[] = {0, ONEHOP_REASON_NOT_RESIDENT, ONEHOP_REASON_RESIDENCY_UNKNOWN,
					   0, ONEHOP_REASON_NOT_RESIDENT, 0};
	CHECK_EQ(plan.segment_count, 6);
	CHECK_EQ(plan.part_count, 1);
	for (uint64_t i = 0; i < 6; i++) {
		CHECK_EQ(plan.segments[i].route, ONEHOP_ROUTE_BUFFERED);
		CHECK_EQ(plan.segments[i].drop, 0);
		CHECK_EQ(plan.segments[i].reasons, reasons[i]);
	}
	oh_plan_free(&plan);
}

TEST(absent_bytes_that_do_not_fit_go_direct_and_resident_ones_through_the_page_cache)
{
	struct oh_plan_facts with = half_resident(7 * CHUNK);
	struct oh_extent e = range(100, 7 * CHUNK - 100, 50);
	static const struct {
		uint64_t offset;
		uint8_t route, drop;
	} want[] = {{100, 0, 0}, {CHUNK, 1, 0}, {3 * CHUNK, 0, 0}, {4 * CHUNK, 0, 0}, {5 * CHUNK, 1, 0},
		    {6 * CHUNK, 0, 0}};
	CHECK_EQ(build(&e, 1, &with), ONEHOP_OK);
	CHECK_EQ(plan.segment_count, 6);
	CHECK_EQ(plan.bytes, 7 * CHUNK - 100);
	CHECK_EQ(plan.segments[2].may_direct, 1);
	CHECK_EQ(plan.segments[2].position % 4096, plan.segments[2].offset % 4096);
	for (uint64_t i = 0; i < 6; i++) {
		const struct oh_segment *s = &plan.segments[i];
		CHECK_EQ(s->offset, want[i].offset);
		CHECK_EQ(s->route, want[i].route);
		CHECK_EQ(s->drop, want[i].drop);
		CHECK(s->route != ONEHOP_ROUTE_DIRECT || s->position % 4096 == s->offset % 4096);
	}
	CHECK(plan.reasons & ONEHOP_REASON_TOO_LARGE_TO_KEEP);
	oh_plan_free(&plan);
}

TEST(where_direct_does_not_work_pages_are_dropped_behind_and_the_reason_is_told)
{
	struct oh_plan_facts with = half_resident(0);
	struct oh_file_facts *file = (struct oh_file_facts *)(uintptr_t)&with.files[0];
	struct oh_extent e = range(CHUNK, CHUNK, 0);
	struct oh_extent rows = {.offset = CHUNK, .row_bytes = 8, .rows = 4, .row_stride = 32};
	file->direct_alignment = 0;
	CHECK_EQ(build(&e, 1, &with), ONEHOP_OK);
	CHECK_EQ(plan.segments[0].route, ONEHOP_ROUTE_BUFFERED);
	CHECK_EQ(plan.segments[0].drop, 1);
	CHECK(plan.reasons & ONEHOP_REASON_NO_DIRECT);
	oh_plan_free(&plan);
	with.forced_route = ONEHOP_ROUTE_DIRECT;
	CHECK_EQ(build(&e, 1, &with), ONEHOP_NO_ROUTE);
	CHECK_HOLDS(error.message, "O_DIRECT");
	file->direct_alignment = 4096;
	CHECK_EQ(build(&rows, 1, &with), ONEHOP_NO_ROUTE);
	CHECK_HOLDS(error.message, "rows");
	CHECK_EQ(build(&e, 1, &with), ONEHOP_OK);
	CHECK_EQ(plan.segments[0].route, ONEHOP_ROUTE_DIRECT);
	CHECK_EQ(plan.reasons, ONEHOP_REASON_ROUTE_FORCED);
	oh_plan_free(&plan);
	with.forced_route = ONEHOP_AUTO;
	CHECK_EQ(build(&rows, 1, &with), ONEHOP_OK);
	CHECK_EQ(plan.segments[0].route, ONEHOP_ROUTE_BUFFERED);
	CHECK(plan.reasons & ONEHOP_REASON_ROWS);
	oh_plan_free(&plan);
	file->is_network = 1;
	CHECK_EQ(build(&e, 1, &with), ONEHOP_OK);
	CHECK_EQ(plan.segments[0].route, ONEHOP_ROUTE_BUFFERED);
	CHECK(plan.reasons & ONEHOP_REASON_NETWORK);
	oh_plan_free(&plan);
}

TEST(the_cache_option_decides_for_resident_bytes_too)
{
	struct oh_plan_facts with = half_resident(100 * CHUNK);
	struct oh_extent e = range(0, 3 * CHUNK, 0);
	with.cache = ONEHOP_CACHE_BYPASS;
	CHECK_EQ(build(&e, 1, &with), ONEHOP_OK);
	for (uint64_t i = 0; i < plan.segment_count; i++)
		CHECK_EQ(plan.segments[i].route, ONEHOP_ROUTE_DIRECT);
	oh_plan_free(&plan);
	with.cache = ONEHOP_CACHE_DROP;
	CHECK_EQ(build(&e, 1, &with), ONEHOP_OK);
	CHECK_EQ(plan.segments[0].route, ONEHOP_ROUTE_BUFFERED);
	CHECK_EQ(plan.segments[0].drop, 1);
	oh_plan_free(&plan);
	with.cache = ONEHOP_CACHE_KEEP;
	with.memory_bytes = 0;
	CHECK_EQ(build(&e, 1, &with), ONEHOP_OK);
	CHECK_EQ(plan.segments[0].route, ONEHOP_ROUTE_BUFFERED);
	CHECK_EQ(plan.segments[0].drop, 0);
	CHECK_EQ(plan.reasons, ONEHOP_REASON_CACHE_OPTION | ONEHOP_REASON_NOT_RESIDENT);
	oh_plan_free(&plan);
}

int
main(int argc, char **argv)
{
	gpu = facts(OH_MEMORY_BATCH_COPY);
	host = facts(OH_MEMORY_ADDRESSABLE | OH_MEMORY_BATCH_COPY);
	return test_main(argc, argv);
}
