/* Option strings: from a caller, from the environment, from a config file.
 *
 * An input is a name and a value, each ended by a NUL, a variable of the environment, ended by a
 * NUL, then a config file. Whatever is let through lies in its range and reads back as it is shown;
 * whatever is refused changes nothing and is told in one line.
 */
#include "check.h"

#include "base/option.h"

#include <sys/mman.h>
#include <unistd.h>

extern char **environ;

static const struct oh_option_row *
row_named(const char *name)
{
	for (uint32_t i = 0; i < oh_option_count; i++)
		if (strcasecmp(oh_option_rows[i].name, name) == 0)
			return &oh_option_rows[i];
	return NULL;
}

static int
is_allowed(const struct oh_option_row *row, uint64_t value)
{
	return (value == ONEHOP_AUTO && row->can_be_auto) || (value >= row->min && value <= row->max);
}

/* Shown and set again it is the same. */
static void
check_shown(const struct oh_option_row *row, uint64_t value)
{
	struct onehop_runtime_options options;
	char text[OH_OPTION_TEXT], range[OH_OPTION_TEXT];
	oh_option_show(row, value, text);
	oh_option_range(row, range);
	MUST(strlen(text) < sizeof text && strlen(range) > 0);
	onehop_runtime_options_init(&options);
	MUST(onehop_runtime_options_set(&options, row->name, text, NULL) == ONEHOP_OK);
	MUST(oh_option_get(&options, row) == value);
}

static void
fuzz_set(const char *name, const char *value)
{
	struct onehop_runtime_options options, before;
	struct onehop_error error = {0};
	const struct oh_option_row *row = row_named(name);
	onehop_runtime_options_init(&options);
	before = options;
	onehop_status status = onehop_runtime_options_set(&options, name, value, &error);
	if (status) {
		MUST(status == (row ? ONEHOP_OUT_OF_RANGE : ONEHOP_UNKNOWN_OPTION));
		MUST(memcmp(&options, &before, sizeof options) == 0);
		check_message(&error, status);
		return;
	}
	MUST(row && is_allowed(row, oh_option_get(&options, row)));
	check_shown(row, oh_option_get(&options, row));
	for (uint32_t i = 0; i < oh_option_count; i++)
		MUST(&oh_option_rows[i] == row ||
		     oh_option_get(&options, &oh_option_rows[i]) == ONEHOP_UNSET);
}

static void
check_resolved(const struct onehop_runtime_options *options, const enum oh_option_origin *origins)
{
	for (uint32_t i = 0; i < oh_option_count; i++) {
		const struct oh_option_row *row = &oh_option_rows[i];
		uint64_t value = oh_option_get(options, row);
		MUST(is_allowed(row, value));
		check_shown(row, value);
		MUST(origins[i] <= OH_ORIGIN_ENVIRONMENT);
		MUST(origins[i] != OH_ORIGIN_DEFAULT || value == row->fallback);
	}
}

/* A file in memory that keeps its path. */
static const char *
config_variable(const uint8_t *text, size_t bytes)
{
	static char variable[64];
	static int fd = -1;
	if (fd < 0) {
		fd = memfd_create("config", MFD_CLOEXEC);
		MUST(fd >= 0);
		snprintf(variable, sizeof variable, "ONEHOP_CONFIG=/proc/self/fd/%d", fd);
	}
	MUST(ftruncate(fd, 0) == 0);
	MUST(bytes == 0 || pwrite(fd, text, bytes, 0) == (ssize_t)bytes);
	return variable;
}

/* A NUL, or a line of 1024 bytes or more: neither is passed over in silence. */
static int
is_no_text(const uint8_t *text, size_t bytes)
{
	size_t line = 0;
	for (size_t i = 0; i < bytes; i++) {
		line = text[i] == '\n' ? 0 : line + 1;
		if (!text[i] || line >= 1024)
			return 1;
	}
	return 0;
}

static void
fuzz_resolve(const char *variable, const uint8_t *text, size_t bytes)
{
	struct onehop_runtime_options options, before;
	enum oh_option_origin origins[sizeof options / 8];
	struct onehop_error error = {0};
	char own[320], config[64];
	char *now[3] = {config, own, NULL}, **was = environ;
	snprintf(config, sizeof config, "%s", config_variable(text, bytes));
	snprintf(own, sizeof own, "ONEHOP_%s", variable);
	/* Another file is for another test. */
	if (strncmp(own, "ONEHOP_CONFIG=", 14) == 0)
		own[0] = '\0';
	memset(&options, 0xA5, sizeof options);
	before = options;
	environ = now;
	onehop_status status = oh_options_resolve(NULL, &options, origins, &error);
	environ = was;
	if (!status) {
		MUST(!is_no_text(text, bytes));
		check_resolved(&options, origins);
		return;
	}
	MUST(status == ONEHOP_UNKNOWN_OPTION || status == ONEHOP_OUT_OF_RANGE ||
	     status == ONEHOP_INVALID_ARGUMENT);
	MUST(memcmp(&options, &before, sizeof options) == 0);
	check_message(&error, status);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end[3], *at = data;
	for (int i = 0; i < 3; i++) {
		end[i] = memchr(at, '\0', (size_t)(data + size - at));
		if (!end[i])
			return 0;
		at = end[i] + 1;
	}
	char *name = (char *)copy_of(data, (size_t)(end[0] + 1 - data));
	char *value = (char *)copy_of(end[0] + 1, (size_t)(end[1] - end[0]));
	char *variable = (char *)copy_of(end[1] + 1, (size_t)(end[2] - end[1]));
	fuzz_set(name, value);
	fuzz_resolve(variable, at, (size_t)(data + size - at));
	free(name);
	free(value);
	free(variable);
	return 0;
}
