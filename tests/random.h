/* A small seeded generator for tests (xorshift64*). The seed comes from TEST_SEED or is fixed, and is
 * printed with a failure by whoever uses it. */
#ifndef OH_TESTS_RANDOM_H
#define OH_TESTS_RANDOM_H

#include <stdint.h>
#include <stdlib.h>

struct random {
	uint64_t state;
};

static inline uint64_t
random_seed(uint64_t fallback)
{
	const char *text = getenv("TEST_SEED");
	return text ? strtoull(text, NULL, 0) : fallback;
}

static inline struct random
random_init(uint64_t seed)
{
	return (struct random){seed * UINT64_C(0x9E3779B97F4A7C15) + 1};
}

static inline uint64_t
random_next(struct random *r)
{
	r->state ^= r->state >> 12;
	r->state ^= r->state << 25;
	r->state ^= r->state >> 27;
	return r->state * UINT64_C(0x2545F4914F6CDD1D);
}

/* 0 to below - 1. */
static inline uint64_t
random_below(struct random *r, uint64_t below)
{
	return random_next(r) % below;
}

#endif
