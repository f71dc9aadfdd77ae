/* CRC-32C: the known sums, and both ways against one bit at a time. */
#include "base/crc32c.h"
#include "harness.h"
#include "random.h"

static uint32_t
bit_by_bit(uint32_t crc, const unsigned char *data, size_t bytes)
{
	crc = ~crc;
	for (size_t i = 0; i < bytes; i++) {
		crc ^= data[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0);
	}
	return ~crc;
}

/* RFC 3720, B.4, and the check value of the catalogues. */
TEST(the_published_sums_come_out)
{
	unsigned char block[32];
	CHECK_EQ(oh_crc32c(0, "123456789", 9), 0xE3069283);
	CHECK_EQ(oh_crc32c(0, "", 0), 0);
	CHECK_EQ(oh_crc32c(7, NULL, 0), 7);
	memset(block, 0, sizeof block);
	CHECK_EQ(oh_crc32c(0, block, sizeof block), 0x8A9136AA);
	memset(block, 0xFF, sizeof block);
	CHECK_EQ(oh_crc32c(0, block, sizeof block), 0x62A8AB43);
	for (int i = 0; i < 32; i++)
		block[i] = (unsigned char)i;
	CHECK_EQ(oh_crc32c(0, block, sizeof block), 0x46DD794E);
	CHECK_EQ(oh_crc32c_portable(0, block, sizeof block), 0x46DD794E);
}

TEST(every_length_and_place_agrees_with_one_bit_at_a_time)
{
	static unsigned char data[6000];
	uint64_t seed = random_seed(1);
	struct random r = random_init(seed);
	printf("# seed %" PRIu64 "\n", seed);
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (unsigned char)random_next(&r);
	for (int round = 0; round < 3000; round++) {
		size_t bytes = round < 1700 ? (size_t)round : random_below(&r, 5900);
		size_t at = random_below(&r, 100);
		uint32_t before = (uint32_t)random_next(&r);
		uint32_t want = bit_by_bit(before, data + at, bytes);
		CHECK_EQ(oh_crc32c(before, data + at, bytes), want);
		CHECK_EQ(oh_crc32c_portable(before, data + at, bytes), want);
	}
}

TEST(pieces_one_after_the_other_are_the_whole)
{
	static unsigned char data[5000];
	uint64_t seed = random_seed(2);
	struct random r = random_init(seed);
	printf("# seed %" PRIu64 "\n", seed);
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (unsigned char)random_next(&r);
	for (int round = 0; round < 500; round++) {
		size_t cut = random_below(&r, sizeof data + 1);
		uint32_t crc = oh_crc32c(0, data, cut);
		CHECK_EQ(oh_crc32c(crc, data + cut, sizeof data - cut),
			 oh_crc32c(0, data, sizeof data));
	}
}

/* Of one piece and of many, of no bytes and of all. */
TEST(pieces_summed_apart_are_joined_to_the_whole)
{
	static unsigned char data[1 << 20];
	uint64_t seed = random_seed(3);
	struct random r = random_init(seed);
	printf("# seed %" PRIu64 "\n", seed);
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (unsigned char)random_next(&r);
	uint32_t whole = oh_crc32c(0, data, sizeof data);
	for (int round = 0; round < 300; round++) {
		uint32_t crc = 0;
		size_t most = (size_t)1 << random_below(&r, 21), next;
		for (size_t at = 0; at < sizeof data; at = next) {
			next = at + random_below(&r, most + 1);
			if (next > sizeof data || round == 0)
				next = sizeof data;
			crc = oh_crc32c_join(crc, oh_crc32c(0, data + at, next - at), next - at);
		}
		CHECK_EQ(crc, whole);
	}
}

/* Lengths that no test has memory for: the join of zeros can be taken apart. */
TEST(lengths_of_any_size_are_joined)
{
	uint64_t seed = random_seed(4);
	struct random r = random_init(seed);
	printf("# seed %" PRIu64 "\n", seed);
	for (int round = 0; round < 200; round++) {
		uint32_t crc = (uint32_t)random_next(&r);
		uint64_t a = random_next(&r) >> 1, b = random_next(&r) >> 1;
		CHECK_EQ(oh_crc32c_join(oh_crc32c_join(crc, 0, a), 0, b),
			 oh_crc32c_join(crc, 0, a + b));
	}
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
