/* Metadata as text: safetensors' __metadata__ and GGUF's keys, file after file.
 *
 * Strings are given where they stand; numbers are written in C's locale, floats with the fewest
 * digits that read back to the same value; arrays are only summed up. Values stay raw bytes in the
 * header until somebody asks.
 */
#include "model/model.h"

#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const kinds[OH_META_KINDS] = {
	[OH_META_U8] = "u8",       [OH_META_I8] = "i8",     [OH_META_U16] = "u16",
	[OH_META_I16] = "i16",     [OH_META_U32] = "u32",   [OH_META_I32] = "i32",
	[OH_META_F32] = "f32",     [OH_META_BOOL] = "bool", [OH_META_STRING] = "string",
	[OH_META_ARRAY] = "array", [OH_META_U64] = "u64",   [OH_META_I64] = "i64",
	[OH_META_F64] = "f64",
};

static const char *
kind_name(uint8_t kind)
{
	return kind < OH_META_KINDS ? kinds[kind] : "unknown";
}

static uint64_t
get_le(const uint8_t *raw, uint32_t bytes)
{
	uint64_t value = 0;
	for (uint32_t i = bytes < 8 ? bytes : 8; i-- > 0;)
		value = value << 8 | raw[i];
	return value;
}

static void
write_float(char out[64], double value, int is_f32)
{
	locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(c);
	for (int digits = is_f32 ? 6 : 15; digits <= 17; digits++) {
		double back;
		snprintf(out, 64, "%.*g", digits, value);
		back = is_f32 ? (double)strtof(out, NULL) : strtod(out, NULL);
		if (back == value || value != value)
			break;
	}
	uselocale(before);
	if (c)
		freelocale(c);
}

static void
write_value(char out[64], const struct oh_meta *meta, const uint8_t *raw)
{
	uint64_t bits = get_le(raw, meta->value_bytes);
	uint32_t low = (uint32_t)bits;
	double f64;
	float f32;
	switch (meta->kind) {
	case OH_META_I8:
		snprintf(out, 64, "%d", (int8_t)bits);
		break;
	case OH_META_I16:
		snprintf(out, 64, "%d", (int16_t)bits);
		break;
	case OH_META_I32:
		snprintf(out, 64, "%" PRId32, (int32_t)bits);
		break;
	case OH_META_I64:
		snprintf(out, 64, "%" PRId64, (int64_t)bits);
		break;
	case OH_META_F32:
		memcpy(&f32, &low, sizeof f32);
		write_float(out, (double)f32, 1);
		break;
	case OH_META_F64:
		memcpy(&f64, &bits, sizeof f64);
		write_float(out, f64, 0);
		break;
	case OH_META_BOOL:
		snprintf(out, 64, "%s", bits ? "true" : "false");
		break;
	case OH_META_ARRAY:
		snprintf(out, 64, "[%" PRIu64 " x %s]", meta->count, kind_name(meta->element_kind));
		break;
	default:
		snprintf(out, 64, "%" PRIu64, bits);
		break;
	}
}

/* The file that holds member index of all; index is in range. */
static uint64_t
file_of(const struct onehop_model *model, uint64_t index)
{
	uint64_t low = 0, high = model->file_count;
	while (high - low > 1) {
		uint64_t middle = low + (high - low) / 2;
		if (model->files[middle].meta_first <= index)
			low = middle;
		else
			high = middle;
	}
	return low;
}

onehop_status
onehop_model_metadata_at(const struct onehop_model *model, uint64_t index,
			 struct onehop_metadata *metadata, char *scratch, uint64_t capacity)
{
	struct onehop_metadata ours = {0};
	const struct oh_table *table;
	struct oh_meta meta;
	char text[64] = "";
	uint64_t file;
	if (!model || (!scratch && capacity))
		return ONEHOP_INVALID_ARGUMENT;
	if (index >= model->meta_count)
		return ONEHOP_OUT_OF_RANGE;
	file = file_of(model, index);
	table = &model->files[file].table;
	oh_table_meta_at(table, index - model->files[file].meta_first, &meta);
	ours.file = (uint32_t)file;
	ours.key = (const char *)table->text + meta.key;
	ours.key_bytes = meta.key_bytes;
	ours.kind = kind_name(meta.kind);
	ours.text = (const char *)table->text + meta.value;
	ours.text_bytes = meta.value_bytes;
	if (meta.kind != OH_META_STRING) {
		write_value(text, &meta, table->text + meta.value);
		ours.text = capacity ? scratch : "";
		ours.text_bytes = 0;
		if (capacity) {
			snprintf(scratch, capacity, "%s", text);
			ours.text_bytes = strlen(scratch);
		}
	}
	return oh_give(metadata, &ours, sizeof ours);
}
