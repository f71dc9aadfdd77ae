/* The arena's layout: alignment, spacing, and how much it may cost. Pure. */
#include "files.h"

#include "model/layout.h"

static uint64_t
place(struct oh_layout *layout, uint64_t offset, uint64_t bytes)
{
	uint64_t at = UINT64_MAX;
	if (oh_layout_place(layout, 0, offset, bytes, 1, &at))
		return UINT64_MAX;
	return at;
}

TEST(tensors_that_are_aligned_among_themselves_keep_the_files_spacing)
{
	/* The data begins at an odd offset, as after a header of any length. */
	struct oh_layout layout = {0};
	CHECK_EQ(place(&layout, 14063, 1 << 20), 0);
	CHECK_EQ(place(&layout, 14063 + (1 << 20), 4096), 1 << 20);
	CHECK_EQ(place(&layout, 14063 + (1 << 20) + 4096, 1 << 20), (1 << 20) + 4096);
	CHECK_EQ(layout.end, (2 << 20) + 4096);
}

TEST(a_small_gap_in_the_file_is_kept_and_a_large_one_closed)
{
	struct oh_layout layout = {0};
	CHECK_EQ(place(&layout, 100, 20), 0);
	CHECK_EQ(place(&layout, 132, 24), 32); /* GGUF pads to 32 */
	CHECK_EQ(place(&layout, 164, 32), 64);
	CHECK_EQ(place(&layout, 164 + 64, 32), 96); /* 32 bytes of nothing are too many for 32 */
	CHECK_EQ(place(&layout, 164 + 64 + 4096, UINT64_C(1) << 20), 256);
	/* 8 KiB, a 128th of a MiB, is not, but 8448 bytes are. */
	CHECK_EQ(place(&layout, 164 + 64 + 4096 + (1 << 20) + 8192, UINT64_C(1) << 20),
		 256 + (1 << 20) + 8192);
	CHECK_EQ(place(&layout, 164 + 64 + 4096 + (2 << 20) + 8192 + 8448, UINT64_C(1) << 20),
		 256 + (2 << 20) + 8192);
}

TEST(a_tensor_that_is_not_aligned_is_shifted_and_those_behind_it_keep_up)
{
	struct oh_layout layout = {0};
	CHECK_EQ(place(&layout, 8, 3), 0);
	CHECK_EQ(place(&layout, 11, 64), 16);
	CHECK_EQ(place(&layout, 75, 64), 80);
	CHECK_EQ(place(&layout, 139, 65536), 256);
	CHECK_EQ(place(&layout, 139 + 65536, 65536), 256 + 65536);
}

TEST(large_tensors_begin_at_256)
{
	struct oh_layout layout = {0};
	CHECK_EQ(place(&layout, 0, 16), 0);
	CHECK_EQ(place(&layout, 16, 32767), 16);
	CHECK_EQ(place(&layout, 16 + 32767, 32768), 33024);
}

TEST(tensors_of_no_bytes_take_no_space_and_lie_within_the_arena)
{
	struct oh_layout layout = {0};
	CHECK_EQ(place(&layout, 8, 0), 0);
	CHECK_EQ(place(&layout, 8, 5), 0);
	CHECK_EQ(place(&layout, 13, 0), 0);
	CHECK_EQ(layout.end, 5);
	CHECK_EQ(place(&layout, 13, 16), 16);
	CHECK_EQ(place(&layout, 29, 0), 32);
	CHECK_EQ(layout.end, 32);
}

TEST(another_file_or_a_part_begins_a_new_spacing)
{
	struct oh_layout layout = {0};
	uint64_t at;
	CHECK_EQ(place(&layout, 1000, 16), 0);
	/* The old distance would give 512. */
	CHECK_EQ(oh_layout_place(&layout, 1, 1512, 1 << 20, 1, &at), 0);
	CHECK_EQ(at, 256);
	CHECK_EQ(oh_layout_place(&layout, 1, 1512 + (1 << 20) + 512, 1 << 20, 1, &at), 0);
	CHECK_EQ(at, 256 + (1 << 20) + 512);
	CHECK_EQ(oh_layout_place(&layout, 1, 1512 + (2 << 20) + 512, 32768, 0, &at), 0);
	CHECK_EQ(at, 256 + (2 << 20) + 512);
	CHECK_EQ(oh_layout_place(&layout, 1, 1512 + (2 << 20) + 1024 + 32768, 1 << 20, 1, &at), 0);
	CHECK_EQ(at, 256 + (2 << 20) + 512 + 32768);
}

TEST(an_arena_that_does_not_fit_64_bits_is_refused_and_nothing_changes)
{
	struct oh_layout layout = {0};
	uint64_t at = 7;
	CHECK_EQ(place(&layout, 0, UINT64_MAX - 300), 0);
	CHECK_EQ(oh_layout_place(&layout, 0, UINT64_MAX - 300, 400, 1, &at), 1);
	CHECK_EQ(oh_layout_place(&layout, 1, 0, UINT64_MAX, 1, &at), 1);
	CHECK_EQ(at, 7);
	CHECK(layout.end == UINT64_MAX - 300);
}

static uint64_t
random_bytes(struct random *random)
{
	static const uint64_t unit[6] = {1, 2, 18, 34, 256, 4096};
	if (random_below(random, 12) == 0)
		return 0;
	return unit[random_below(random, 6)] *
	       (1 + random_below(random, UINT64_C(1) << random_below(random, 14)));
}

/* Placed in order, aligned, not overlapping, and at most 1 % and 16 bytes a tensor too much. */
static void
check_random_layout(struct random *random)
{
	struct oh_layout layout = {0};
	uint64_t count = 1 + random_below(random, 300), offset = random_below(random, 5000);
	uint64_t file = 0, sum = 0, end = 0;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t bytes = random_bytes(random), at;
		int whole = random_below(random, 8) != 0;
		/* Gaps about as wide as are worth to be kept. */
		if (random_below(random, 2) == 0)
			offset += random_below(random, 2 + bytes / 64) / 256 * 256;
		if (random_below(random, 20) == 0) {
			file++;
			offset = random_below(random, 5000);
		}
		CHECK_EQ(oh_layout_place(&layout, file, offset, bytes, whole, &at), 0);
		CHECK_EQ(at % (bytes >= 32768 ? 256 : 16), 0);
		if (bytes == 0) {
			CHECK(at <= end && layout.end == end);
		} else {
			CHECK(at >= end);
			end = at + bytes;
			CHECK_EQ(layout.end, end);
		}
		sum += bytes;
		offset += bytes;
		if (random_below(random, 3) == 0)
			offset += random_below(random, UINT64_C(1) << random_below(random, 16));
	}
	CHECK(layout.end <= sum + sum / 100 + 16 * count);
}

TEST(random_layouts_are_aligned_and_cost_at_most_one_percent_and_16_bytes_a_tensor)
{
	struct random random = random_begin();
	for (int i = 0; i < 2000 && !test_failed; i++)
		check_random_layout(&random);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
