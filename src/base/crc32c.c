/* CRC-32C: by the instruction that processors have for it, three at a time, or by tables.
 *
 * The instruction takes three cycles and one can begin in each, so three neighbouring pieces of the
 * data are summed at once and joined: a CRC is moved over n bytes of zeros by a carry-less product
 * with x^(8n - 33) modulo the polynomial, which the next instruction reduces. Everything here is
 * bit-reflected, and "state" is a CRC before its final complement.
 *
 * The tables (eight bytes a step) are linear in their index, so each is written as eight numbers,
 * those of single bits, and the compiler adds them up.
 */
#include "base/crc32c.h"

#include <string.h>

#define BIT(bit, value) ((bit) ? (value) : 0)
#define ONE(i, a, b, c, d, e, f, g, h)                                                             \
	(BIT((i) & 1, a) ^ BIT((i) & 2, b) ^ BIT((i) & 4, c) ^ BIT((i) & 8, d) ^                   \
	 BIT((i) & 16, e) ^ BIT((i) & 32, f) ^ BIT((i) & 64, g) ^ BIT((i) & 128, h))
#define FOUR(i, ...)                                                                               \
	ONE(i, __VA_ARGS__), ONE((i) + 1, __VA_ARGS__), ONE((i) + 2, __VA_ARGS__),                 \
	    ONE((i) + 3, __VA_ARGS__)
#define SIXTEEN(i, ...)                                                                            \
	FOUR(i, __VA_ARGS__), FOUR((i) + 4, __VA_ARGS__), FOUR((i) + 8, __VA_ARGS__),              \
	    FOUR((i) + 12, __VA_ARGS__)
#define SIXTY_FOUR(i, ...)                                                                         \
	SIXTEEN(i, __VA_ARGS__), SIXTEEN((i) + 16, __VA_ARGS__), SIXTEEN((i) + 32, __VA_ARGS__),   \
	    SIXTEEN((i) + 48, __VA_ARGS__)
#define TABLE(...)                                                                                 \
	{                                                                                          \
		SIXTY_FOUR(0, __VA_ARGS__), SIXTY_FOUR(64, __VA_ARGS__),                           \
		    SIXTY_FOUR(128, __VA_ARGS__), SIXTY_FOUR(192, __VA_ARGS__)                     \
	}

/* table[k][b]: the state that byte b leaves after k more bytes of zeros. */
static const uint32_t table[8][256] = {
	TABLE(0xF26B8303, 0xE13B70F7, 0xC79A971F, 0x8AD958CF, 0x105EC76F, 0x20BD8EDE, 0x417B1DBC,
	      0x82F63B78),
	TABLE(0x13A29877, 0x274530EE, 0x4E8A61DC, 0x9D14C3B8, 0x3FC5F181, 0x7F8BE302, 0xFF17C604,
	      0xFBC3FAF9),
	TABLE(0xA541927E, 0x4F6F520D, 0x9EDEA41A, 0x38513EC5, 0x70A27D8A, 0xE144FB14, 0xC76580D9,
	      0x8B277743),
	TABLE(0xDD45AAB8, 0xBF672381, 0x7B2231F3, 0xF64463E6, 0xE964B13D, 0xD725148B, 0xABA65FE7,
	      0x52A0C93F),
	TABLE(0x38116FAC, 0x7022DF58, 0xE045BEB0, 0xC5670B91, 0x8F2261D3, 0x1BA8B557, 0x37516AAE,
	      0x6EA2D55C),
	TABLE(0xEF306B19, 0xDB8CA0C3, 0xB2F53777, 0x6006181F, 0xC00C303E, 0x85F4168D, 0x0E045BEB,
	      0x1C08B7D6),
	TABLE(0x68032CC8, 0xD0065990, 0xA5E0C5D1, 0x4E2DFD53, 0x9C5BFAA6, 0x3D5B83BD, 0x7AB7077A,
	      0xF56E0EF4),
	TABLE(0x493C7D27, 0x9278FA4E, 0x211D826D, 0x423B04DA, 0x847609B4, 0x0D006599, 0x1A00CB32,
	      0x34019664),
};

static uint32_t
by_bytes(uint32_t state, const unsigned char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		state = state >> 8 ^ table[0][(state ^ at[i]) & 0xFF];
	return state;
}

static uint32_t
by_eight(uint32_t state, const unsigned char *at)
{
	unsigned char mixed[8];
	memcpy(mixed, at, sizeof mixed);
	for (int i = 0; i < 4; i++)
		mixed[i] ^= (unsigned char)(state >> 8 * i);
	return table[7][mixed[0]] ^ table[6][mixed[1]] ^ table[5][mixed[2]] ^ table[4][mixed[3]] ^
	       table[3][mixed[4]] ^ table[2][mixed[5]] ^ table[1][mixed[6]] ^ table[0][mixed[7]];
}

uint32_t
oh_crc32c_portable(uint32_t crc, const void *data, size_t bytes)
{
	const unsigned char *at = data;
	uint32_t state = ~crc;
	for (; bytes >= 8; bytes -= 8, at += 8)
		state = by_eight(state, at);
	return ~by_bytes(state, at, bytes);
}

/* The product of two polynomials modulo that of the CRC; bit 31 - n of a number is x^n. */
static uint32_t
product(uint32_t a, uint32_t b)
{
	uint32_t sum = 0;
	for (int bit = 31; bit >= 0; bit--) {
		sum ^= BIT(a >> bit & 1, b);
		b = b >> 1 ^ BIT(b & 1, UINT32_C(0x82F63B78));
	}
	return sum;
}

/* The first moves over the second's length of zeros: it is multiplied by x^(8n). The complements at
 * the beginning and end of each take each other out. */
uint32_t
oh_crc32c_join(uint32_t first, uint32_t second, uint64_t second_bytes)
{
	uint32_t power = UINT32_C(1) << (31 - 8);
	for (; second_bytes; second_bytes >>= 1) {
		if (second_bytes & 1)
			first = product(first, power);
		power = product(power, power);
	}
	return first ^ second;
}

#ifdef __x86_64__
#include <immintrin.h>

#define TARGET __attribute__((target("sse4.2,crc32,pclmul")))

/* Bytes that are summed side by side. Longer pieces are slower: they lie in more pages at once. The
 * constants move a state over one piece, and over two. */
#define PIECE    256
#define OVER_ONE 0xB9E02B86
#define OVER_TWO 0xDD7E3B0C

TARGET static inline uint64_t
eight(uint64_t state, const unsigned char *at)
{
	uint64_t word;
	memcpy(&word, at, sizeof word);
	return _mm_crc32_u64(state, word);
}

/* Not yet reduced: that is for the crc32 instruction. */
TARGET static inline uint64_t
moved(uint64_t state, uint32_t by)
{
	__m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)state),
					       _mm_cvtsi64_si128((long long)by), 0);
	return (uint64_t)_mm_cvtsi128_si64(product);
}

TARGET static inline uint64_t
three_pieces(uint64_t state, const unsigned char *at)
{
	uint64_t second = 0, third = 0;
	for (size_t i = 0; i < PIECE; i += 8) {
		state = eight(state, at + i);
		second = eight(second, at + PIECE + i);
		third = eight(third, at + 2 * PIECE + i);
	}
	return third ^ _mm_crc32_u64(0, moved(state, OVER_TWO) ^ moved(second, OVER_ONE));
}

TARGET static uint32_t
by_instruction(uint32_t crc, const unsigned char *at, size_t bytes)
{
	uint64_t state = ~crc & UINT32_MAX;
	for (; bytes >= 3 * PIECE; bytes -= 3 * PIECE, at += 3 * PIECE)
		state = three_pieces(state, at);
	for (; bytes >= 8; bytes -= 8, at += 8)
		state = eight(state, at);
	for (; bytes; bytes--, at++)
		state = _mm_crc32_u8((uint32_t)state, *at);
	return ~(uint32_t)state;
}

uint32_t
oh_crc32c(uint32_t crc, const void *data, size_t bytes)
{
	if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
		return by_instruction(crc, data, bytes);
	return oh_crc32c_portable(crc, data, bytes);
}
#else
uint32_t
oh_crc32c(uint32_t crc, const void *data, size_t bytes)
{
	return oh_crc32c_portable(crc, data, bytes);
}
#endif
