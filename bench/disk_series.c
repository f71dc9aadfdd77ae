/* Figures of a series of passes, as a table and as JSON. */
#include "disk_series.h"

#include <stdlib.h>

static const char *const kind_names[KINDS] = {
	[KIND_PREAD] = "pread",
	[KIND_URING] = "io_uring",
	[KIND_FIXED] = "io_uring registered",
	[KIND_BUFFERED] = "buffered",
};

static double
value(const struct pass *pass, uint64_t bytes, enum figure figure)
{
	double gb = (double)bytes * 1e-9;
	switch (figure) {
	case FIGURE_RATE:
		return gb / pass->seconds;
	case FIGURE_CPU:
		return pass->cpu / gb;
	case FIGURE_MACHINE:
		return pass->machine / gb;
	case FIGURE_CORES:
		return pass->cpu / pass->seconds;
	case FIGURE_INVOLUNTARY:
		return pass->involuntary / gb;
	}
	return 0;
}

static int
by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static struct spread
spread_of(double *values, unsigned count)
{
	qsort(values, count, sizeof *values, by_value);
	double low = values[(count - 1) / 2], high = values[count / 2];
	return (struct spread){values[0], (low + high) / 2, values[count - 1]};
}

struct spread
series_spread(const struct series *series, uint64_t bytes, enum figure figure)
{
	double values[PASSES_MAX];
	for (unsigned i = 0; i < series->count; i++)
		values[i] = value(&series->passes[i], bytes, figure);
	return spread_of(values, series->count);
}

struct spread
series_against(const struct series *series, const struct series *base, uint64_t bytes,
	       enum figure figure)
{
	double values[PASSES_MAX];
	for (unsigned i = 0; i < series->count; i++) {
		double other = value(&base->passes[i], bytes, figure);
		values[i] = other > 0 ? value(&series->passes[i], bytes, figure) / other : 0;
	}
	return spread_of(values, series->count);
}

const char *
way_name(char text[48], const struct way *way)
{
	snprintf(text, 48, "%s %u x %llu KiB", kind_names[way->kind], way->flight,
		 (unsigned long long)way->bytes >> 10);
	return text;
}

/* ------------------------------------------------------------------------------------------- */
/* As tables */

static void
print_series(const struct report *report, const struct series *series)
{
	char name[48];
	struct spread rate = series_spread(series, report->bytes, FIGURE_RATE);
	printf("%-32s %7.2f %7.2f %7.2f %8.4f %8.3f %6.2f %8.0f\n", way_name(name, &series->way),
	       rate.min, rate.median, rate.max,
	       series_spread(series, report->bytes, FIGURE_CPU).median,
	       series_spread(series, report->bytes, FIGURE_MACHINE).median,
	       series_spread(series, report->bytes, FIGURE_CORES).median,
	       series_spread(series, report->bytes, FIGURE_INVOLUNTARY).median);
}

static void
print_head(const char *title, unsigned passes)
{
	printf("\n%s, %u passes each, interleaved\n", title, passes);
	printf("%-32s %7s %7s %7s %8s %8s %6s %8s\n", "way", "min", "median", "max", "CPU s/GB",
	       "machine", "cores", "invol/GB");
}

static void
print_circumstances(const struct report *report)
{
	facts_print(&report->facts);
	printf("io_uring     %s\n", report->mode);
	printf("file         %llu MiB, each way's bytes compared once\n",
	       (unsigned long long)report->bytes >> 20);
	printf("ring         %llu MiB, %llu MiB of the process in huge pages\n",
	       (unsigned long long)RING_BYTES >> 20, (unsigned long long)report->facts.huge >> 20);
	printf("restless     %u of %u passes began while others worked\n", report->restless,
	       report->passes);
}

static void
print_ratios(const struct report *report)
{
	char name[48];
	printf("\nagainst %s, pass by pass\n", way_name(name, &report->base->way));
	printf("%-32s %24s %24s\n", "way", "rate: min median max", "CPU s/GB: min median max");
	for (unsigned i = 0; i < report->finals_count; i++) {
		const struct series *series = &report->finals[i], *base = report->base;
		struct spread rate = series_against(series, base, report->bytes, FIGURE_RATE);
		struct spread cpu = series_against(series, base, report->bytes, FIGURE_CPU);
		printf("%-32s %8.3f %7.3f %7.3f %8.3f %7.3f %7.3f\n",
		       way_name(name, &series->way), rate.min, rate.median, rate.max, cpu.min,
		       cpu.median, cpu.max);
	}
}

void
report_print(const struct report *report)
{
	print_circumstances(report);
	print_head("every way", report->series[0].count);
	for (unsigned i = 0; i < report->series_count; i++)
		print_series(report, &report->series[i]);
	if (report->finals_count == 0)
		return;
	print_head("the quickest of each kind and size",
		   report->finals[0].count);
	for (unsigned i = 0; i < report->finals_count; i++)
		print_series(report, &report->finals[i]);
	print_ratios(report);
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
json_series(const struct report *report, const struct series *all, unsigned count,
	    const struct series *base)
{
	for (unsigned i = 0; i < count; i++) {
		const struct series *series = &all[i];
		printf("%s\n    {\"kind\": \"%s\", \"in_flight\": %u", i ? "," : "",
		       kind_names[series->way.kind], series->way.flight);
		printf(", \"slice_bytes\": %llu, \"passes\": %u",
		       (unsigned long long)series->way.bytes, series->count);
		json_spread("gb_per_s", series_spread(series, report->bytes, FIGURE_RATE));
		json_spread("cpu_s_per_gb", series_spread(series, report->bytes, FIGURE_CPU));
		json_spread("machine_cpu_s_per_gb",
			    series_spread(series, report->bytes, FIGURE_MACHINE));
		json_spread("cores", series_spread(series, report->bytes, FIGURE_CORES));
		json_spread("involuntary_per_gb",
			    series_spread(series, report->bytes, FIGURE_INVOLUNTARY));
		if (base) {
			json_spread("rate_ratio",
				    series_against(series, base, report->bytes, FIGURE_RATE));
			json_spread("cpu_ratio",
				    series_against(series, base, report->bytes, FIGURE_CPU));
		}
		printf("}");
	}
}

void
report_print_json(const struct report *report)
{
	printf("{\"machine\": {");
	facts_print_json(&report->facts);
	json_text("io_uring", report->mode);
	printf("\"huge_bytes\": %llu},\n", (unsigned long long)report->facts.huge);
	printf(" \"bytes\": %llu, \"verified\": true, \"passes\": %u, \"restless\": %u,\n",
	       (unsigned long long)report->bytes, report->passes, report->restless);
	printf(" \"ways\": [");
	json_series(report, report->series, report->series_count, NULL);
	printf("],\n \"finals\": [");
	json_series(report, report->finals, report->finals_count, report->base);
	printf("]}\n");
}
