/* Checked arithmetic for sizes that come from a file or a caller. Each returns 1 if the result does
 * not fit, and leaves *out alone then. */
#ifndef OH_BASE_ARITH_H
#define OH_BASE_ARITH_H

#include <stdint.h>

static inline int
oh_add(uint64_t a, uint64_t b, uint64_t *out)
{
	uint64_t sum;
	if (__builtin_add_overflow(a, b, &sum))
		return 1;
	*out = sum;
	return 0;
}

static inline int
oh_mul(uint64_t a, uint64_t b, uint64_t *out)
{
	uint64_t product;
	if (__builtin_mul_overflow(a, b, &product))
		return 1;
	*out = product;
	return 0;
}

/* align is a power of two. */
static inline uint64_t
oh_align_down(uint64_t value, uint64_t align)
{
	return value & ~(align - 1);
}

static inline int
oh_align_up(uint64_t value, uint64_t align, uint64_t *out)
{
	uint64_t raised;
	if (oh_add(value, align - 1, &raised))
		return 1;
	*out = raised & ~(align - 1);
	return 0;
}

static inline uint64_t
oh_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t
oh_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

#endif
