/* The pace of copies: how much of a ring the link needs. */
#include "engine/pace.h"
#include "harness.h"

#define MIB (UINT64_C(1) << 20)
#define BLOCK (16 * MIB)

/* Copies of a block each, one given when the last but one has ended, each taking `ns`. */
static uint64_t
copy(struct oh_pace *pace, uint64_t at, int count, uint64_t ns)
{
	for (int i = 0; i < count; i++, at += ns)
		oh_pace_copied(pace, at > ns ? at - ns : 0, at + ns, BLOCK);
	return at;
}

TEST(a_quick_link_of_ones_own_gets_the_whole_ring)
{
	struct oh_pace pace = {0};
	CHECK_EQ(oh_pace_blocks(&pace, 4, BLOCK), 4);
	copy(&pace, 0, 1000, 305000);
	CHECK_EQ(oh_pace_blocks(&pace, 4, BLOCK), 4);
	CHECK_EQ(oh_pace_blocks(&pace, 8, 8 * MIB), 7);
	CHECK_EQ(oh_pace_blocks(&pace, 1, BLOCK), 1);
}

TEST(a_link_that_is_slow_or_shared_gets_what_it_needs_and_all_again_afterwards)
{
	struct oh_pace pace = {0};
	uint64_t at = copy(&pace, 0, 8, 610000);
	CHECK_EQ(oh_pace_blocks(&pace, 4, BLOCK), 3);
	at = copy(&pace, at, 8, 1220000);
	CHECK_EQ(oh_pace_blocks(&pace, 4, BLOCK), 2);
	CHECK_EQ(oh_pace_blocks(&pace, 8, BLOCK), 2);
	CHECK_EQ(oh_pace_blocks(&pace, 1, BLOCK), 1);
	CHECK_EQ(oh_pace_blocks(&pace, 64, MIB), 13);
	copy(&pace, at, 4, 305000);
	CHECK_EQ(oh_pace_blocks(&pace, 4, BLOCK), 4);
}

TEST(waiting_for_reads_is_no_slow_link)
{
	struct oh_pace pace = {0};
	uint64_t at = 0;
	for (int i = 0; i < 40; i++, at += 10000000)
		oh_pace_copied(&pace, at, at + 305000, BLOCK);
	CHECK_EQ(oh_pace_blocks(&pace, 4, BLOCK), 4);
}

/* Ends are found up to 0.1 ms late, or all at once. */
TEST(ends_that_are_found_late_are_no_slow_link)
{
	struct oh_pace pace = {0};
	uint64_t at = 0;
	for (uint64_t i = 0; i < 1000; i++, at += 305000) {
		oh_pace_copied(&pace, at, at + 305000 + i * 7919 % 100000, BLOCK);
		CHECK_EQ(oh_pace_blocks(&pace, 4, BLOCK), 4);
	}
	for (uint64_t i = 0; i < 1000; i++) {
		at += i % 4 ? 0 : 4 * 305000;
		oh_pace_copied(&pace, at - 4 * 305000, at, BLOCK);
		CHECK_EQ(oh_pace_blocks(&pace, 4, BLOCK), 4);
	}
}

TEST(a_clock_that_stands_still_divides_nothing_by_zero)
{
	struct oh_pace pace = {0};
	for (int i = 0; i < 16; i++)
		oh_pace_copied(&pace, 5, 5, BLOCK);
	CHECK_EQ(oh_pace_blocks(&pace, 4, BLOCK), 4);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
