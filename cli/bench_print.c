/* What bench found, as a table and as JSON.
 *
 * Each rate stands beside the ceiling of the same run that it is held against: the pinned copy for
 * a GPU; for the host, plain preads into fresh memory for whole loads and into memory that is there
 * for kept ones.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct spread {
	double least, median, most;
};

static int
by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* Of an even number, the median is the lower of the two in the middle. */
static struct spread
spread_of(double *values, size_t count)
{
	struct spread spread = {0, 0, 0};
	if (count == 0)
		return spread;
	qsort(values, count, sizeof *values, by_size);
	spread.least = values[0];
	spread.median = values[(count - 1) / 2];
	spread.most = values[count - 1];
	return spread;
}

static double
rate_of(const struct bench_record *record)
{
	return record->times.whole ? (double)record->bytes / (double)record->times.whole : 0;
}

static double
ns_of(const struct bench_record *record)
{
	return (double)record->times.whole;
}

static double
host_growth_of(const struct bench_record *record)
{
	return (double)record->rss_growth;
}

static double
pinned_of(const struct bench_record *record)
{
	return (double)record->pinned_peak;
}

static double
both_of(const struct bench_record *record)
{
	return (double)(record->rss_growth + record->pinned_peak);
}

static double
device_growth_of(const struct bench_record *record)
{
	return (double)record->device_growth;
}

static struct spread
spread(const struct bench_series *series, double (*value)(const struct bench_record *record))
{
	double values[BENCH_RECORDS];
	for (size_t i = 0; i < series->count; i++)
		values[i] = value(&series->records[i]);
	return spread_of(values, series->count);
}

/* The record whose whole is the median, for its phases. */
static const struct bench_record *
typical(const struct bench_series *series)
{
	struct spread times = spread(series, ns_of);
	for (size_t i = 0; i < series->count; i++)
		if (ns_of(&series->records[i]) == times.median)
			return &series->records[i];
	return NULL;
}

/* How far apart two equal loads that began together end, in hundredths of the longer one: the
 * worst of all pairs. */
static double
worst_apart(const struct bench_series *series)
{
	double worst = 0;
	for (size_t i = 0; i + 1 < series->count; i += 2) {
		double a = ns_of(&series->records[i]), b = ns_of(&series->records[i + 1]);
		double longer = a > b ? a : b, apart = longer > 0 ? (a > b ? a - b : b - a) : 0;
		if (longer > 0 && apart / longer > worst)
			worst = apart / longer;
	}
	return worst * 100;
}

/* In bytes a second: what whole loads, and what kept ones, are held against. */
static double
ceiling(const struct bench *bench, int kept)
{
	const struct bench_reads *reads = kept ? &bench->kept_reads : &bench->reads;
	return bench->is_host ? reads->rate[reads->best] : bench->copy_rate;
}

/* What the load took beyond the tensors' own memory. On the host they are the process's own. */
static struct spread
beyond(const struct bench *bench, struct spread growth, int counts_tensors)
{
	double own = counts_tensors ? (double)bench->bytes : 0;
	growth.least = growth.least > own ? growth.least - own : 0;
	growth.median = growth.median > own ? growth.median - own : 0;
	growth.most = growth.most > own ? growth.most - own : 0;
	return growth;
}

/* ------------------------------------------------------------------------------------------- */

static void
print_machine(struct out *out, const struct bench *bench)
{
	char text[SIZE_TEXT];
	label(out, "onehop");
	out_format(out, "%s\n", onehop_version());
	label(out, "processor");
	out_format(out, "%s, %u cores usable\n", bench->facts.cpu, bench->machine.usable_cores);
	label(out, "memory");
	out_format(out, "%s", size_text(text, bench->facts.total_bytes));
	out_format(out, ", %s of it usable\n", size_text(text, bench->machine.memory_bytes));
	label(out, "kernel");
	out_format(out, "%s\n", bench->facts.kernel);
	label(out, "device");
	out_format(out, "%s: %s", bench->device, bench->device_info.name);
	if (!bench->is_host)
		out_format(out, ", %s, PCI %s", bench->device_info.driver, bench->device_info.pci);
	out_text(out, "\n");
	label(out, "model");
	out_name(out, bench->model.path, strlen(bench->model.path));
	out_format(out, " (%s, %s)\n", bench->format, bench->facts.file_system);
	label(out, "");
	out_format(out, "%s in %llu tensors, %u file%s; page cache warm; every byte verified\n",
		   size_text(text, bench->bytes), (unsigned long long)bench->tensors, bench->files,
		   bench->files == 1 ? "" : "s");
}

static void
print_reads(struct out *out, const char *what, const struct bench_reads *reads)
{
	out_format(out, "%-44s%8.2f  with %u thread%s (", what, reads->rate[reads->best] / 1e9,
		   reads->threads[reads->best], reads->threads[reads->best] == 1 ? "" : "s");
	for (unsigned i = 0; i < reads->tries; i++)
		out_format(out, "%s%u: %.2f", i ? ", " : "", reads->threads[i],
			   reads->rate[i] / 1e9);
	out_text(out, ")\n");
}

static void
print_rate(struct out *out, const char *what, const struct bench_series *series, double against)
{
	struct spread rates = spread(series, rate_of);
	out_format(out, "%-44s%8.2f%9.2f%8.2f%9.3f\n", what, rates.least, rates.median, rates.most,
		   against > 0 ? rates.median * 1e9 / against : 0);
}

static void
print_phases(struct out *out, const struct bench *bench)
{
	char text[SIZE_TEXT];
	const struct bench_record *record = typical(&bench->first);
	if (!record)
		return;
	out_text(out, "\nphases of the median first load\n");
	for (size_t i = 0; i < JOB_PHASES; i++) {
		uint64_t ns = job_phase(&record->times, i);
		out_format(out, "  %-12s%12s%s\n", job_phases[i].words,
			   ns ? time_text(text, ns) : "none",
			   i < JOB_MOMENTS ? "" : "  since the transfer's start");
	}
}

static void
print_memory(struct out *out, const struct bench *bench)
{
	char text[SIZE_TEXT];
	struct spread rss = beyond(bench, spread(&bench->first, host_growth_of), bench->is_host);
	struct spread both = beyond(bench, spread(&bench->first, both_of), bench->is_host);
	struct spread device = beyond(bench, spread(&bench->first, device_growth_of), 1);
	out_text(out, "\nmemory of a first load at its peak, the most of all\n");
	out_format(out, "  %-42s%s\n", "RssAnon, growth since before open",
		   size_text(text, (uint64_t)rss.most));
	out_format(out, "  %-42s%s\n", "pinned",
		   size_text(text, (uint64_t)spread(&bench->first, pinned_of).most));
	out_format(out, "  %-42s%s\n", "the two added",
		   size_text(text, (uint64_t)both.most));
	if (!bench->is_host)
		out_format(out, "  %-42s%s\n", "device memory beyond the tensors",
			   size_text(text, (uint64_t)device.most));
}

static void
print_concurrent(struct out *out, const struct bench *bench)
{
	char least[SIZE_TEXT], median[SIZE_TEXT], most[SIZE_TEXT];
	struct spread times = spread(&bench->amid, ns_of);
	if (bench->pair.count == 0)
		return;
	out_text(out, "\nat once\n");
	out_format(out, "  %-42sends %.1f %% apart at most, in %zu pairs\n", "two equal loads",
		   worst_apart(&bench->pair), bench->pair.count / 2);
	if (bench->amid.count == 0)
		out_text(out, "  1 MiB begun amid the model: the model ended first each time\n");
	else
		out_format(out, "  %-42s%s, median %s, most %s\n", "1 MiB begun amid the model",
			   time_text(least, (uint64_t)times.least),
			   time_text(median, (uint64_t)times.median),
			   time_text(most, (uint64_t)times.most));
}

void
bench_print(struct out *out, const struct bench *bench)
{
	char least[SIZE_TEXT], median[SIZE_TEXT], most[SIZE_TEXT];
	struct spread tiny = spread(&bench->tiny, ns_of);
	print_machine(out, bench);
	out_text(out, "\nceilings                                        GB/s\n");
	if (bench->is_host) {
		print_reads(out, "pread into fresh host memory", &bench->reads);
		print_reads(out, "pread into host memory that is there", &bench->kept_reads);
	} else {
		out_format(out, "%-44s%8.2f\n", "pinned copy to the device, pieces of 16 MiB",
			   bench->copy_rate / 1e9);
		print_reads(out, "page cache into private buffers", &bench->reads);
	}
	out_text(out, "\nloads, GB/s                                      min   median     max"
		      "  of the ceiling\n");
	print_rate(out, "first of a process", &bench->first, ceiling(bench, 0));
	print_rate(out, "again, memory kept", &bench->kept, ceiling(bench, 1));
	print_rate(out, "again, memory freed and allocated anew", &bench->again, ceiling(bench, 0));
	print_phases(out, bench);
	print_memory(out, bench);
	out_format(out, "\n1 MiB, from making a runtime to the last byte: %s, median %s, most %s\n",
		   time_text(least, (uint64_t)tiny.least),
		   time_text(median, (uint64_t)tiny.median),
		   time_text(most, (uint64_t)tiny.most));
	print_concurrent(out, bench);
	print_pressure(out, &bench->pressure);
}

/* ------------------------------------------------------------------------------------------- */

static void
json_machine(struct json *json, const struct bench *bench)
{
	json_open(json, "machine", '{');
	json_text(json, "processor", bench->facts.cpu);
	json_number(json, "usable_cores", bench->machine.usable_cores);
	json_number(json, "memory_bytes", bench->facts.total_bytes);
	json_number(json, "usable_memory_bytes", bench->machine.memory_bytes);
	json_text(json, "kernel", bench->facts.kernel);
	json_text(json, "file_system", bench->facts.file_system);
	json_text(json, "device", bench->device);
	json_text(json, "device_name", bench->device_info.name);
	json_text(json, "driver", bench->device_info.driver);
	json_text(json, "pci", bench->device_info.pci);
	json_close(json);
	json_open(json, "model", '{');
	json_text(json, "path", bench->model.path);
	json_text(json, "format", bench->format);
	json_number(json, "bytes", bench->bytes);
	json_number(json, "tensors", bench->tensors);
	json_number(json, "files", bench->files);
	json_bool(json, "verified", 1);
	json_close(json);
}

static void
json_reads(struct json *json, const char *key, const struct bench_reads *reads)
{
	json_open(json, key, '[');
	for (unsigned i = 0; i < reads->tries; i++) {
		json_open(json, NULL, '{');
		json_number(json, "threads", reads->threads[i]);
		json_double(json, "gb_per_s", reads->rate[i] / 1e9, 4);
		json_close(json);
	}
	json_close(json);
}

static void
json_spread(struct json *json, const char *key, struct spread spread, double unit, int decimals)
{
	json_open(json, key, '{');
	json_double(json, "min", spread.least / unit, decimals);
	json_double(json, "median", spread.median / unit, decimals);
	json_double(json, "max", spread.most / unit, decimals);
	json_close(json);
}

static void
json_rate(struct json *json, const char *key, const struct bench_series *series, double against)
{
	struct spread rates = spread(series, rate_of);
	const struct bench_record *record = typical(series);
	json_open(json, key, '{');
	json_number(json, "loads", series->count);
	json_spread(json, "gb_per_s", rates, 1, 4);
	json_double(json, "of_ceiling", rates.median * 1e9 / against, 4);
	if (record)
		json_phases(json, &record->times);
	json_close(json);
}

void
bench_json(struct out *out, const struct bench *bench)
{
	struct json json;
	struct spread rss = beyond(bench, spread(&bench->first, host_growth_of), bench->is_host);
	struct spread device = beyond(bench, spread(&bench->first, device_growth_of), 1);
	json_begin(&json, out);
	json_text(&json, "version", onehop_version());
	json_machine(&json, bench);
	json_open(&json, "ceilings", '{');
	if (!bench->is_host)
		json_double(&json, "pinned_copy_gb_per_s", bench->copy_rate / 1e9, 4);
	json_reads(&json, bench->is_host ? "pread_fresh" : "pread_private", &bench->reads);
	if (bench->is_host)
		json_reads(&json, "pread_kept", &bench->kept_reads);
	json_close(&json);
	json_rate(&json, "first", &bench->first, ceiling(bench, 0));
	json_rate(&json, "again_anew", &bench->again, ceiling(bench, 0));
	json_rate(&json, "again_kept", &bench->kept, ceiling(bench, 1));
	json_open(&json, "memory", '{');
	json_double(&json, "rss_anon_growth_bytes", rss.most, 0);
	json_double(&json, "pinned_bytes", spread(&bench->first, pinned_of).most, 0);
	if (!bench->is_host)
		json_double(&json, "device_beyond_tensors_bytes", device.most, 0);
	json_close(&json);
	json_spread(&json, "tiny_seconds", spread(&bench->tiny, ns_of), 1e9, 9);
	if (bench->pair.count) {
		json_open(&json, "concurrent", '{');
		json_double(&json, "pair_apart_percent", worst_apart(&bench->pair), 2);
		json_number(&json, "amid_loads", bench->amid.count);
		json_spread(&json, "amid_seconds", spread(&bench->amid, ns_of), 1e9, 9);
		json_close(&json);
	}
	json_pressure(&json, &bench->pressure);
	json_end(&json);
}
