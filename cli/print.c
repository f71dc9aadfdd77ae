/* Pieces of tables and of JSON that several commands print: shapes, reasons, notes, pressure. */
#include "cli.h"
#include "progress.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define LABEL 16

void
label(struct out *out, const char *text)
{
	size_t bytes = strlen(text);
	out_text(out, text);
	out_spaces(out, bytes < LABEL ? LABEL - bytes : 1);
}

void
print_shape(struct out *out, const struct shape *shape)
{
	out_raw(out, "[", 1);
	for (uint64_t i = 0; i < shape->rank; i++) {
		if (i > 0)
			out_raw(out, ",", 1);
		out_number(out, shape->dims[i]);
	}
	out_raw(out, "]", 1);
}

void
print_reasons(struct out *out, uint32_t reasons)
{
	for (uint32_t bit = 1; bit; bit <<= 1) {
		if (!(reasons & bit))
			continue;
		label(out, "reason");
		out_format(out, "%s: %s; %s\n", onehop_reason_name(bit), onehop_reason_text(bit),
			   onehop_reason_remedy(bit));
	}
}

void
print_notes(struct out *out, const struct onehop_model *model)
{
	uint64_t count = job_model_info(model).note_count;
	for (uint64_t i = 0; i < count; i++) {
		const char *note = onehop_model_note_at(model, i);
		if (!note)
			continue;
		label(out, "note");
		out_text(out, note);
		out_text(out, "\n");
	}
}

void
json_shape(struct json *json, const struct shape *shape)
{
	json_open(json, "shape", '[');
	for (uint64_t i = 0; i < shape->rank; i++)
		json_number(json, NULL, shape->dims[i]);
	json_close(json);
}

void
json_reasons(struct json *json, uint32_t reasons)
{
	json_open(json, "reasons", '[');
	for (uint32_t bit = 1; bit; bit <<= 1) {
		if (!(reasons & bit))
			continue;
		json_open(json, NULL, '{');
		json_text(json, "name", onehop_reason_name(bit));
		json_text(json, "text", onehop_reason_text(bit));
		json_text(json, "remedy", onehop_reason_remedy(bit));
		json_close(json);
	}
	json_close(json);
}

void
json_phases(struct json *json, const struct job_times *times)
{
	json_open(json, "phases", '{');
	for (size_t i = 0; i < JOB_PHASES; i++)
		json_number(json, job_phases[i].key, job_phase(times, i));
	json_close(json);
}

void
json_notes(struct json *json, const struct onehop_model *model)
{
	uint64_t count = job_model_info(model).note_count;
	json_open(json, "notes", '[');
	for (uint64_t i = 0; i < count; i++) {
		const char *note = onehop_model_note_at(model, i);
		if (note)
			json_text(json, NULL, note);
	}
	json_close(json);
}

void
json_null(struct json *json, const char *key)
{
	json_double(json, key, NAN, 0);
}

/* ------------------------------------------------------------------------------------------- */
/* Pressure */

/* Below this part of the time a wait explains nothing. */
#define WORTH_SAYING 0.01

/* A counter without words is told by the one after it. */
static const struct counter {
	const char *key;
	const char *words;
	uint32_t bit;
	size_t offset;
} counters[] = {
#define COUNTER(field, words, bit) {#field, words, bit, offsetof(struct onehop_pressure, field)}
	COUNTER(throttled_periods, NULL, ONEHOP_PRESSURE_THROTTLED),
	COUNTER(throttled_us, "CPU throttling", ONEHOP_PRESSURE_THROTTLED),
	COUNTER(io_us, "I/O", ONEHOP_PRESSURE_IO),
	COUNTER(memory_us, "memory", ONEHOP_PRESSURE_MEMORY),
	COUNTER(group_io_us, "I/O of the cgroup", ONEHOP_PRESSURE_GROUP_IO),
	COUNTER(group_memory_us, "memory of the cgroup", ONEHOP_PRESSURE_GROUP_MEMORY),
#undef COUNTER
};
#define COUNTERS (sizeof counters / sizeof counters[0])

static struct onehop_pressure
pressure_now(void)
{
	struct onehop_pressure now = {.size = sizeof now};
	onehop_status status = onehop_machine_pressure(&now);
	assert(status == ONEHOP_OK);
	(void)status;
	return now;
}

/* The clock is read outside of the counters, so that no wait is longer than the span. */
void
pressure_begin(struct pressure_span *span)
{
	span->ns = now_ns();
	span->since = pressure_now();
}

void
pressure_end(struct pressure_span *span)
{
	struct onehop_pressure now = pressure_now();
	onehop_status status = onehop_machine_pressure_since(&span->since, &now, &span->since);
	assert(status == ONEHOP_OK);
	(void)status;
	span->ns = now_ns() - span->ns;
}

/* Which part of the span a wait took. */
static double
part_of(const struct pressure_span *span, uint64_t us)
{
	return span->ns ? (double)us * 1e3 / (double)span->ns : 0;
}

/* What is not known is 0 and says nothing. */
static void
print_waits(struct out *out, const struct pressure_span *span, const char *name, uint64_t us,
	    uint64_t group_us, const char *remedy)
{
	double all = part_of(span, us), group = part_of(span, group_us);
	if (all <= WORTH_SAYING && group <= WORTH_SAYING)
		return;
	label(out, name);
	if (all > WORTH_SAYING)
		out_format(out, "%.1f %% of the time some task of the machine waited", 100 * all);
	if (group > WORTH_SAYING)
		out_format(out, "%s%.1f %% %s", all > WORTH_SAYING ? ", " : "", 100 * group,
			   all > WORTH_SAYING ? "one of this cgroup"
					      : "of the time some task of this cgroup waited");
	out_format(out, "; %s\n", remedy);
}

void
print_pressure(struct out *out, const struct pressure_span *span)
{
	char periods[SIZE_TEXT], waited[SIZE_TEXT];
	const struct onehop_pressure *since = &span->since;
	if (since->throttled_periods) {
		label(out, "throttled");
		out_format(out,
			   "%s period%s, %s of CPU time waited for (the cgroup's CPU quota); raise "
			   "the quota, or let less run beside the load\n",
			   grouped(periods, since->throttled_periods),
			   since->throttled_periods == 1 ? "" : "s",
			   time_text(waited, since->throttled_us * 1000));
	}
	print_waits(out, span, "I/O pressure", since->io_us, since->group_io_us,
		    "onehop prefetch puts into the page cache what is not there yet");
	print_waits(out, span, "memory pressure", since->memory_us, since->group_memory_us,
		    "free memory or raise the cgroup's limit, so that the page cache can stay");
}

static uint64_t
count_of(const struct onehop_pressure *pressure, const struct counter *counter)
{
	return *(const uint64_t *)((const char *)pressure + counter->offset);
}

void
json_pressure(struct json *json, const struct pressure_span *span)
{
	json_open(json, "pressure", '{');
	json_double(json, "seconds", (double)span->ns / 1e9, 9);
	for (size_t i = 0; i < COUNTERS; i++)
		if (span->since.known & counters[i].bit)
			json_number(json, counters[i].key, count_of(&span->since, &counters[i]));
		else
			json_null(json, counters[i].key);
	json_close(json);
}

/* "LEAD: the counters that are known, or are not". Nothing if there is none. */
static void
print_counters(struct out *out, const char *lead, uint32_t bits)
{
	const char *between = lead;
	for (size_t i = 0; i < COUNTERS; i++) {
		if (!counters[i].words || !(counters[i].bit & bits))
			continue;
		out_format(out, "%s%s", between, counters[i].words);
		between = ", ";
	}
}

void
print_pressure_known(struct out *out)
{
	uint32_t known = pressure_now().known;
	label(out, "pressure");
	print_counters(out, "readable: ", known);
	print_counters(out, known ? "; not readable: " : "not readable: ", ~known);
	out_text(out, "\n");
}

void
json_pressure_known(struct json *json)
{
	uint32_t known = pressure_now().known;
	json_open(json, "pressure", '{');
	for (size_t i = 0; i < COUNTERS; i++)
		json_bool(json, counters[i].key, (known & counters[i].bit) != 0);
	json_close(json);
}
