/* JSON: skipping a value and taking it apart agree on what is JSON, and skipping changes nothing.
 */
#include "format/json.h"
#include "check.h"

/* Takes one value apart: every string decoded, every number read as one where it is one. */
static onehop_status
take(struct oh_json *json)
{
	enum oh_json_kind kind = oh_json_peek(json);
	struct oh_json_string string;
	onehop_status status;
	int more;
	if (kind == OH_JSON_STRING) {
		status = oh_json_string(json, &string, "a string");
		if (!status) {
			MUST((uint64_t)string.at + string.bytes < json->at);
			check_utf8(json->text + string.at, string.bytes);
		}
		return status;
	}
	if (kind != OH_JSON_OBJECT && kind != OH_JSON_ARRAY) {
		struct oh_json before = *json;
		uint64_t value;
		before.error = NULL;
		if (oh_json_u64(&before, &value, "a number"))
			return oh_json_skip(json);
		status = oh_json_skip(json);
		MUST(!status && before.at == json->at);
		return status;
	}
	status = oh_json_enter(json, kind);
	if (status)
		return status;
	while ((more = oh_json_more(json, kind)) > 0) {
		if (kind == OH_JSON_OBJECT) {
			status = oh_json_key(json, &string);
			if (status)
				return status;
			check_utf8(json->text + string.at, string.bytes);
		}
		status = take(json);
		if (status)
			return status;
	}
	return more < 0 ? ONEHOP_MALFORMED : ONEHOP_OK;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct onehop_error error = {0}, other = {0};
	struct oh_json json;
	uint8_t *text = copy_of(data, size);
	oh_json_init(&json, "fuzz.json", text, size, 8, &error);
	onehop_status skipped = oh_json_skip(&json);
	if (!skipped)
		skipped = oh_json_end(&json);
	MUST(size == 0 || memcmp(text, data, size) == 0);
	MUST(json.at <= size);
	oh_json_init(&json, "fuzz.json", text, size, 8, &other);
	onehop_status taken = take(&json);
	if (!taken)
		taken = oh_json_end(&json);
	MUST(skipped == taken);
	if (skipped) {
		check_error(&error, skipped);
		MUST(strcmp(error.message, other.message) == 0);
	} else {
		MUST(json.depth == 0);
	}
	free(text);
	return 0;
}
