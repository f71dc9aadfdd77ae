/* A sharded model's index, and the rules of a tensor-parallel plan: both read every input. */
#include "format/index.h"
#include "check.h"

static void
check_file(const uint8_t *name, uint32_t bytes)
{
	MUST(name && bytes >= 12);
	MUST(memcmp(name + bytes - 12, ".safetensors", 12) == 0);
	MUST(name[0] != '/' && !memchr(name, 0, bytes));
	MUST(!memmem(name, bytes, "/../", 4));
	MUST(memcmp(name, "../", 3) != 0);
}

static void
fuzz_index(const uint8_t *data, size_t size)
{
	struct onehop_error error = {0};
	struct oh_index index = {0};
	onehop_status status =
	    oh_index_parse("fuzz.json", copy_of(data, size), size, &index, &error);
	if (status) {
		check_error(&error, status);
		MUST(!index.text);
		return;
	}
	MUST(index.text);
	for (uint64_t i = 0; i < index.file_count; i++)
		check_file(index.text + index.files[i].name, index.files[i].name_bytes);
	for (uint64_t i = 0; i < index.count; i++) {
		MUST(index.entries[i].file < index.file_count);
		check_utf8(index.text + index.entries[i].name, index.entries[i].name_bytes);
	}
	oh_index_free(&index);
}

static void
fuzz_rules(const uint8_t *data, size_t size)
{
	struct onehop_error error = {0};
	struct oh_rules rules = {0};
	onehop_status status =
	    oh_rules_parse("fuzz.json", copy_of(data, size), size, &rules, &error);
	if (status) {
		check_error(&error, status);
		MUST(!rules.text);
		return;
	}
	for (uint64_t i = 0; i < rules.count; i++) {
		MUST(rules.rules[i].dim >= -1);
		MUST(!memchr(rules.text + rules.rules[i].pattern, 0, rules.rules[i].pattern_bytes));
	}
	oh_rules_free(&rules);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fuzz_index(data, size);
	fuzz_rules(data, size);
	return 0;
}
