/* What bench/cold measured, as tables and as JSON. */
#include "cold.h"

static const char *
name_of(const struct pairs *pairs)
{
	return *pairs->name ? pairs->name : "defaults";
}

static double
gb(uint64_t bytes)
{
	return (double)bytes * 1e-9;
}

/* "direct", or "buffered 0.54, direct 0.54": GB of a load by route. */
static const char *
routes(char text[64], const struct pairs *pairs)
{
	const struct {
		const char *name;
		uint64_t bytes;
	} all[] = {{"buffered", pairs->buffered}, {"direct", pairs->direct},
		   {"mapped", pairs->mapped}};
	uint64_t sum = pairs->buffered + pairs->direct + pairs->mapped;
	int at = 0;
	text[0] = '\0';
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (all[i].bytes == sum && sum > 0)
			return all[i].name;
		if (all[i].bytes > 0)
			at += snprintf(text + at, 64 - (size_t)at, "%s%s %.2f", at ? ", " : "",
				       all[i].name, gb(all[i].bytes / pairs->count));
	}
	return text;
}

/* ------------------------------------------------------------------------------------------- */
/* As tables */

void
cold_print_begin(const struct cold_report *report)
{
	facts_print(&report->facts);
	printf("file         %llu MiB, loads verified byte by byte\n",
	       (unsigned long long)report->bytes >> 20);
	printf("device       %s\n", report->device);
	fflush(stdout);
}

static void
print_head(const char *title, const struct pairs *pairs, const char *ratio)
{
	struct estimate estimate = pairs_ratio(pairs, 1);
	printf("\n%s: %u pairs", title, pairs->count);
	if (estimate.rank)
		printf(", interval from value %u to %u", estimate.rank,
		       pairs->count + 1 - estimate.rank);
	printf("\n%-16s %21s %7s  %6s  %-24s %15s %15s  %s\n", "onehop", "GB/s: min median max",
	       "beside", ratio, "95 % interval", "CPU s/GB beside", "machine  beside", "route");
}

static void
print_pairs(const struct pairs *pairs, int of_rates)
{
	char text[64];
	struct spread rate = pairs_ours(pairs, FIGURE_RATE);
	struct estimate ratio = pairs_ratio(pairs, of_rates);
	printf("%-16s %7.2f%7.2f%7.2f %7.2f  %6.3f  ", name_of(pairs), rate.min, rate.median,
	       rate.max, pairs_base(pairs, FIGURE_RATE).median, ratio.median);
	printf("%.3f to %.3f %-10s", ratio.low, ratio.high,
	       is_resolved(&ratio) ? "" : "unresolved");
	printf(" %7.3f %7.3f %7.3f %7.3f  %s\n", pairs_ours(pairs, FIGURE_CPU).median,
	       pairs_base(pairs, FIGURE_CPU).median, pairs_ours(pairs, FIGURE_MACHINE).median,
	       pairs_base(pairs, FIGURE_MACHINE).median, routes(text, pairs));
	fflush(stdout);
}

void
cold_print_cold(const struct cold_report *report)
{
	char name[48];
	printf("\nthe quickest plain ways, %u passes each\n%-24s %21s %9s\n",
	       report->finalists[0].count, "GB/s", "min median max", "CPU s/GB");
	for (unsigned i = 0; i < FINALISTS; i++) {
		const struct series *one = &report->finalists[i];
		struct spread rate = series_spread(one, report->bytes, FIGURE_RATE);
		printf("%-24s %7.2f%7.2f%7.2f %9.3f\n", way_name(name, &one->way), rate.min,
		       rate.median, rate.max, series_spread(one, report->bytes, FIGURE_CPU).median);
	}
	print_head("cold, against the first of them", &report->cold[0], "rates");
	for (unsigned i = 0; i < report->loader_count; i++)
		print_pairs(&report->cold[i], 1);
}

void
cold_print_half(const struct cold_report *report)
{
	print_head("half resident, against its halves one after the other", &report->half[0],
		   "times");
	for (unsigned i = 0; i < report->loader_count; i++)
		print_pairs(&report->half[i], 0);
}

void
cold_print_warm(const struct cold_report *report)
{
	char title[80], name[48];
	snprintf(title, sizeof title, "warm, against %s",
		 report->warm_way.flight ? way_name(name, &report->warm_way)
					 : "copies of pinned memory");
	print_head(title, &report->warm, "rates");
	print_pairs(&report->warm, 1);
}

void
cold_print_end(const struct cold_report *report)
{
	printf("\n%u of %u readings began while others worked\n", report->restless,
	       report->readings);
}

/* ------------------------------------------------------------------------------------------- */
/* As JSON */

static void
json_spread(const char *name, struct spread spread)
{
	printf(", \"%s\": {\"min\": %.5f, \"median\": %.5f, \"max\": %.5f}", name, spread.min,
	       spread.median, spread.max);
}

static void
json_seconds(const char *name, const struct pass *passes, unsigned count)
{
	printf(", \"%s\": [", name);
	for (unsigned i = 0; i < count; i++)
		printf("%s%.5f", i ? ", " : "", passes[i].seconds);
	printf("]");
}

static void
json_pairs(const struct pairs *pairs, int of_rates)
{
	struct estimate ratio = pairs_ratio(pairs, of_rates);
	printf("{");
	json_text("options", pairs->name);
	printf("\"pairs\": %u, \"%s\": {\"median\": %.5f, \"low\": %.5f, \"high\": %.5f, "
	       "\"rank\": %u, \"resolved\": %s}",
	       pairs->count, of_rates ? "rate_ratio" : "time_ratio", ratio.median, ratio.low,
	       ratio.high, ratio.rank, is_resolved(&ratio) ? "true" : "false");
	json_spread("gb_per_s", pairs_ours(pairs, FIGURE_RATE));
	json_spread("beside_gb_per_s", pairs_base(pairs, FIGURE_RATE));
	json_spread("cpu_s_per_gb", pairs_ours(pairs, FIGURE_CPU));
	json_spread("beside_cpu_s_per_gb", pairs_base(pairs, FIGURE_CPU));
	json_spread("machine_cpu_s_per_gb", pairs_ours(pairs, FIGURE_MACHINE));
	json_spread("beside_machine_cpu_s_per_gb", pairs_base(pairs, FIGURE_MACHINE));
	json_seconds("seconds", pairs->ours, pairs->count);
	json_seconds("beside_seconds", pairs->base, pairs->count);
	printf(", \"buffered_bytes\": %llu, \"direct_bytes\": %llu, \"mapped_bytes\": %llu}",
	       (unsigned long long)(pairs->buffered / pairs->count),
	       (unsigned long long)(pairs->direct / pairs->count),
	       (unsigned long long)(pairs->mapped / pairs->count));
}

static void
json_all(const char *name, const struct pairs *all, unsigned count, int of_rates)
{
	printf(",\n \"%s\": [", name);
	for (unsigned i = 0; i < count && all[i].count > 0; i++) {
		printf("%s\n    ", i ? "," : "");
		json_pairs(&all[i], of_rates);
	}
	printf("]");
}

static void
json_plain(const struct cold_report *report)
{
	char name[48];
	printf(",\n \"plain\": [");
	for (unsigned i = 0; i < FINALISTS && report->finalists[i].count > 0; i++) {
		const struct series *one = &report->finalists[i];
		printf("%s\n    {", i ? "," : "");
		json_text("way", way_name(name, &one->way));
		printf("\"passes\": %u", one->count);
		json_spread("gb_per_s", series_spread(one, report->bytes, FIGURE_RATE));
		json_spread("cpu_s_per_gb", series_spread(one, report->bytes, FIGURE_CPU));
		printf("}");
	}
	printf("]");
}

void
cold_print_json(const struct cold_report *report)
{
	char name[48];
	printf("{\"machine\": {");
	facts_print_json(&report->facts);
	json_text("device", report->device);
	printf("\"readings\": %u, \"restless\": %u},\n \"bytes\": %llu, \"verified\": true",
	       report->readings, report->restless, (unsigned long long)report->bytes);
	json_plain(report);
	json_all("cold", report->cold, report->loader_count, 1);
	json_all("half", report->half, report->loader_count, 0);
	printf(",\n ");
	json_text("warm_beside", report->warm_way.flight ? way_name(name, &report->warm_way)
							 : "copies of pinned memory");
	printf("\n \"warm\": ");
	if (report->warm.count)
		json_pairs(&report->warm, 1);
	else
		printf("null");
	printf("}\n");
}
