/* The pace of copies: when half of a ring is enough. */
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

TEST(a_link_of_ones_own_gets_the_whole_ring)
{
	struct oh_pace pace = {0};
	CHECK_EQ(oh_pace_blocks(&pace, 4), 4);
	copy(&pace, 0, 1000, 300000);
	CHECK_EQ(oh_pace_blocks(&pace, 4), 4);
}

TEST(a_link_that_is_shared_gets_half_of_it_and_all_again_afterwards)
{
	struct oh_pace pace = {0};
	uint64_t at = copy(&pace, 0, 8, 300000);
	at = copy(&pace, at, 4, 1200000);
	CHECK_EQ(oh_pace_blocks(&pace, 4), 2);
	CHECK_EQ(oh_pace_blocks(&pace, 5), 3);
	CHECK_EQ(oh_pace_blocks(&pace, 2), 2);
	CHECK_EQ(oh_pace_blocks(&pace, 1), 1);
	copy(&pace, at, 4, 310000);
	CHECK_EQ(oh_pace_blocks(&pace, 4), 4);
}

TEST(waiting_for_reads_is_no_slow_link)
{
	struct oh_pace pace = {0};
	uint64_t at = copy(&pace, 0, 8, 300000);
	for (int i = 0; i < 40; i++, at += 10000000)
		oh_pace_copied(&pace, at, at + 300000, BLOCK);
	CHECK_EQ(oh_pace_blocks(&pace, 4), 4);
}

/* Ends are noted up to 0.1 ms late. */
TEST(ends_that_are_noted_late_are_no_slow_link)
{
	struct oh_pace pace = {0};
	uint64_t at = 0;
	for (uint64_t i = 0; i < 1000; i++, at += 300000)
		oh_pace_copied(&pace, at, at + 300000 + i * 7919 % 100000, BLOCK);
	CHECK_EQ(oh_pace_blocks(&pace, 4), 4);
}

/* Nobody looked for 2 ms, and then all had ended. */
TEST(ends_that_are_noted_all_at_once_are_no_quicker_link)
{
	struct oh_pace pace = {0};
	uint64_t at = copy(&pace, 0, 8, 300000);
	for (int i = 0; i < 100; i++) {
		at += 2000000;
		for (int k = 0; k < 4; k++)
			oh_pace_copied(&pace, at - 2000000, at, BLOCK);
		at = copy(&pace, at, 400, 300000);
		CHECK_EQ(oh_pace_blocks(&pace, 4), 4);
	}
}

TEST(a_clock_that_stands_still_divides_nothing_by_zero)
{
	struct oh_pace pace = {0};
	for (int i = 0; i < 16; i++)
		oh_pace_copied(&pace, 5, 5, BLOCK);
	CHECK_EQ(oh_pace_blocks(&pace, 4), 4);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
