/* Pieces of tables and of JSON that several commands print: shapes, reasons, notes. */
#include "cli.h"

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
