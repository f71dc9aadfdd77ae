/* What is told of pairs: the median of their ratios and how sure it is. */
#include "cold.h"

#include <stdlib.h>
#include <string.h>

#define SURE 0.95
#define RESOLVED 0.05

/* The largest rank whose interval holds the median with SURE: less than rank of count values lie
 * below the median with a chance of (1 - SURE) / 2 at most. */
static unsigned
rank_for(unsigned count)
{
	double chance = 1, sum = 0;
	unsigned rank = 0;
	for (unsigned i = 0; i < count; i++)
		chance /= 2;
	for (; rank < count / 2; rank++) {
		sum += chance;
		if (sum > (1 - SURE) / 2)
			break;
		chance = chance * (count - rank) / (rank + 1);
	}
	return rank;
}

static int
by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

struct estimate
pairs_ratio(const struct pairs *pairs, int of_rates)
{
	double values[PASSES_MAX];
	unsigned count = pairs->count, rank = rank_for(count);
	for (unsigned i = 0; i < count; i++) {
		double ours = pairs->ours[i].seconds, base = pairs->base[i].seconds;
		values[i] = of_rates ? base / ours : ours / base;
	}
	qsort(values, count, sizeof *values, by_value);
	unsigned outer = rank ? rank - 1 : 0;
	return (struct estimate){
		.median = (values[(count - 1) / 2] + values[count / 2]) / 2,
		.low = values[outer],
		.high = values[count - 1 - outer],
		.rank = rank,
	};
}

int
is_resolved(const struct estimate *estimate)
{
	return estimate->rank > 0 && estimate->median - estimate->low <= RESOLVED &&
	       estimate->high - estimate->median <= RESOLVED;
}

static struct spread
spread_of(const struct pairs *pairs, const struct pass *passes, enum figure figure)
{
	struct series series = {.count = pairs->count};
	memcpy(series.passes, passes, pairs->count * sizeof *passes);
	return series_spread(&series, pairs->bytes, figure);
}

struct spread
pairs_ours(const struct pairs *pairs, enum figure figure)
{
	return spread_of(pairs, pairs->ours, figure);
}

struct spread
pairs_base(const struct pairs *pairs, enum figure figure)
{
	return spread_of(pairs, pairs->base, figure);
}
