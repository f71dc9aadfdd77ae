/* Options from their one table: text to value and back, and where each value came from.
 *
 * The environment and the config file are read in oh_options_resolve() and nowhere else. Both refuse
 * names that no row has. It keeps no state.
 */
#include "base/option.h"

#include "base/arith.h"
#include "base/sys.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ROW(name, kind, def, min, max, autos, unit, doc)                                           \
	{#name, def, min, max, unit, doc, offsetof(struct onehop_runtime_options, name),           \
	 OH_OPTION_##kind, autos},
const struct oh_option_row oh_option_rows[] = {ONEHOP_RUNTIME_OPTIONS(ROW)};
#undef ROW
const uint32_t oh_option_count = sizeof oh_option_rows / sizeof oh_option_rows[0];

#define TEXT(name, value, text, doc) text,
static const char *const route_names[] = {ONEHOP_ROUTE_LIST(TEXT)};
static const char *const cache_names[] = {ONEHOP_CACHE_LIST(TEXT)};
static const char *const look_names[] = {ONEHOP_LOOK_LIST(TEXT)};

/* The names of an enumerated kind's values, as many as its row's maximum + 1; NULL for a number. */
static const char *const *
names_of(const struct oh_option_row *row)
{
	switch (row->kind) {
	case OH_OPTION_ROUTE:
		return route_names;
	case OH_OPTION_CACHE:
		return cache_names;
	case OH_OPTION_LOOK:
		return look_names;
	default:
		return NULL;
	}
}

extern char **environ;

static const char prefix[] = "ONEHOP_";

/* Of the config file, NUL included. */
#define LINE_BYTES 1024

static uint64_t *
field(struct onehop_runtime_options *options, const struct oh_option_row *row)
{
	return (uint64_t *)((char *)options + row->offset);
}

uint64_t
oh_option_get(const struct onehop_runtime_options *options, const struct oh_option_row *row)
{
	uint64_t value;
	memcpy(&value, (const char *)options + row->offset, sizeof value);
	return value;
}

void
onehop_runtime_options_init(struct onehop_runtime_options *options)
{
	options->size = sizeof *options;
	options->reserved = 0;
	for (uint32_t i = 0; i < oh_option_count; i++)
		*field(options, &oh_option_rows[i]) = ONEHOP_UNSET;
}

static void
show_bytes(uint64_t value, char text[OH_OPTION_TEXT])
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
	uint32_t unit = 0;
	while (unit < 4 && value >= 1024 && value % 1024 == 0) {
		value /= 1024;
		unit++;
	}
	snprintf(text, OH_OPTION_TEXT, "%llu%s", (unsigned long long)value, units[unit]);
}

void
oh_option_show(const struct oh_option_row *row, uint64_t value, char text[OH_OPTION_TEXT])
{
	if (value == ONEHOP_AUTO)
		strcpy(text, "auto");
	else if (row->kind == OH_OPTION_BYTES)
		show_bytes(value, text);
	else if (names_of(row) && value <= row->max)
		strcpy(text, names_of(row)[value]);
	else
		snprintf(text, OH_OPTION_TEXT, "%llu", (unsigned long long)value);
}

void
oh_option_range(const struct oh_option_row *row, char text[OH_OPTION_TEXT])
{
	char low[OH_OPTION_TEXT], high[OH_OPTION_TEXT];
	const char *autos = row->can_be_auto ? "auto, " : "";
	if (names_of(row)) {
		size_t used = (size_t)snprintf(text, OH_OPTION_TEXT, "%s", row->can_be_auto ? "auto" : "");
		for (uint32_t i = 0; i <= row->max && used < OH_OPTION_TEXT; i++)
			used += (size_t)snprintf(text + used, OH_OPTION_TEXT - used, "%s%s",
						 used ? ", " : "", names_of(row)[i]);
		return;
	}
	oh_option_show(row, row->min, low);
	oh_option_show(row, row->max, high);
	snprintf(text, OH_OPTION_TEXT, "%s%.40s to %.40s", autos, low, high);
}

/* Edit distance of two short words, given up past 32 letters. */
static uint32_t
distance(const char *a, const char *b)
{
	uint32_t row[34];
	size_t length = strlen(b);
	if (length > 32 || strlen(a) > 32)
		return UINT32_MAX;
	for (uint32_t j = 0; j <= length; j++)
		row[j] = j;
	for (uint32_t i = 1; *a; a++, i++) {
		uint32_t diagonal = row[0];
		row[0] = i;
		for (uint32_t j = 1; j <= length; j++) {
			int same = tolower((unsigned char)*a) == tolower((unsigned char)b[j - 1]);
			uint32_t change = diagonal + (same ? 0 : 1);
			uint32_t shift = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
			diagonal = row[j];
			row[j] = change < shift ? change : shift;
		}
	}
	return row[length];
}

const char *
oh_nearest(const char *name, const char *const *names, uint32_t count)
{
	const char *best = NULL;
	uint32_t least = UINT32_MAX;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t steps = distance(name, names[i]);
		if (steps < least) {
			least = steps;
			best = names[i];
		}
	}
	return best && least <= strlen(best) / 2 ? best : NULL;
}

static const struct oh_option_row *
find_row(const char *name, size_t length)
{
	for (uint32_t i = 0; i < oh_option_count; i++)
		if (strlen(oh_option_rows[i].name) == length &&
		    strncasecmp(oh_option_rows[i].name, name, length) == 0)
			return &oh_option_rows[i];
	return NULL;
}

static const char *
nearest_option(const char *name)
{
	const char *names[sizeof oh_option_rows / sizeof oh_option_rows[0]];
	for (uint32_t i = 0; i < oh_option_count; i++)
		names[i] = oh_option_rows[i].name;
	return oh_nearest(name, names, oh_option_count);
}

static onehop_status
fail_unknown(const char *where, const char *name, struct onehop_error *error)
{
	char shown[OH_SHOWN];
	const char *near = nearest_option(name);
	onehop_status status = oh_fail(error, ONEHOP_UNKNOWN_OPTION, "%s: there is no option %s", where,
				       oh_show(shown, name, strlen(name)));
	if (near)
		oh_remedy(error, "did you mean %s?", near);
	else
		oh_remedy(error, "see `onehop options`");
	return status;
}

/* variable is as it stands in the environment, its name name_bytes long, prefix included. */
static onehop_status
fail_variable(const char *variable, size_t name_bytes, struct onehop_error *error)
{
	char name[OH_SHOWN], shown[OH_SHOWN], wanted[OH_SHOWN] = "";
	snprintf(name, sizeof name, "%.*s", (int)name_bytes, variable);
	const char *near = nearest_option(name + sizeof prefix - 1);
	oh_fail(error, ONEHOP_UNKNOWN_OPTION, "environment: %s sets no option",
		oh_show(shown, name, strlen(name)));
	for (size_t i = 0; near && near[i] && i + 1 < sizeof wanted; i++)
		wanted[i] = (char)toupper((unsigned char)near[i]);
	if (near)
		oh_remedy(error, "did you mean %s%s?", prefix, wanted);
	else
		oh_remedy(error, "unset it, or see `onehop options`");
	return ONEHOP_UNKNOWN_OPTION;
}

static onehop_status
fail_value(const struct oh_option_row *row, const char *where, const char *value,
	   struct onehop_error *error)
{
	char range[OH_OPTION_TEXT], shown[OH_SHOWN];
	oh_option_range(row, range);
	oh_fail(error, ONEHOP_OUT_OF_RANGE, "%s: %s is no value for option %s", where,
		oh_show(shown, value, strlen(value)), row->name);
	oh_remedy(error, "give one of: %s", range);
	return ONEHOP_OUT_OF_RANGE;
}

/* "64MiB" and the like. Returns 1 if text is no number of bytes. */
static int
parse_bytes(const char *text, uint64_t *value)
{
	static const char letters[] = "KMGT";
	char *end;
	uint64_t number;
	if (!isdigit((unsigned char)*text))
		return 1;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno)
		return 1;
	const char *letter = *end ? strchr(letters, toupper((unsigned char)*end)) : NULL;
	if (letter) {
		if (oh_mul(number, UINT64_C(1) << (10 * (letter - letters + 1)), &number))
			return 1;
		end++;
		if (strcasecmp(end, "iB") == 0)
			end += 2;
	} else if (strcasecmp(end, "B") == 0) {
		end++;
	}
	if (*end)
		return 1;
	*value = number;
	return 0;
}

static int
parse_value(const struct oh_option_row *row, const char *text, uint64_t *value)
{
	if (row->can_be_auto && strcasecmp(text, "auto") == 0) {
		*value = ONEHOP_AUTO;
		return 0;
	}
	if (names_of(row)) {
		for (uint64_t i = 0; i <= row->max; i++) {
			if (strcasecmp(text, names_of(row)[i]) == 0) {
				*value = i;
				return 0;
			}
		}
		return 1;
	}
	if (row->kind == OH_OPTION_COUNT && text[strspn(text, "0123456789")])
		return 1;
	return parse_bytes(text, value) || *value < row->min || *value > row->max;
}

static onehop_status
set_from(struct onehop_runtime_options *options, const struct oh_option_row *row,
	 const char *where, const char *text, struct onehop_error *error)
{
	uint64_t value;
	if (parse_value(row, text, &value))
		return fail_value(row, where, text, error);
	*field(options, row) = value;
	return ONEHOP_OK;
}

onehop_status
onehop_runtime_options_set(struct onehop_runtime_options *options, const char *name,
			   const char *value, struct onehop_error *error)
{
	if (!options || !name || !value)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "options, name or value is NULL");
	const struct oh_option_row *row = find_row(name, strlen(name));
	if (!row)
		return fail_unknown("options", name, error);
	return set_from(options, row, "options", value, error);
}

/* Variables with this prefix that are no options: the config file's, and those of the Python package,
 * which name the library itself and say that it is to be installed. */
static int
is_other_variable(const char *name, size_t length)
{
	static const char *const others[] = {"CONFIG", "LIBRARY", "INSTALL", "PYTHON"};
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		if (strlen(others[i]) == length && memcmp(name, others[i], length) == 0)
			return 1;
	return 0;
}

static onehop_status
read_environment(struct onehop_runtime_options *options, enum oh_option_origin *origins,
		 struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	for (char **entry = environ; entry && *entry && !status; entry++) {
		if (strncmp(*entry, prefix, sizeof prefix - 1) != 0)
			continue;
		const char *name = *entry + sizeof prefix - 1;
		const char *equals = strchr(name, '=');
		if (!equals || is_other_variable(name, (size_t)(equals - name)))
			continue;
		const struct oh_option_row *row = find_row(name, (size_t)(equals - name));
		if (!row)
			return fail_variable(*entry, (size_t)(equals - *entry), error);
		status = set_from(options, row, "environment", equals + 1, error);
		origins[row - oh_option_rows] = OH_ORIGIN_ENVIRONMENT;
	}
	return status;
}

static char *
trim(char *text)
{
	while (isspace((unsigned char)*text))
		text++;
	char *end = text + strlen(text);
	while (end > text && isspace((unsigned char)end[-1]))
		*--end = '\0';
	return text;
}

static onehop_status
read_line(const char *path, uint32_t number, char *line, struct onehop_runtime_options *options,
	  enum oh_option_origin *origins, struct onehop_error *error)
{
	char where[320];
	char *comment = strchr(line, '#'), *equals;
	if (comment)
		*comment = '\0';
	line = trim(line);
	if (!*line)
		return ONEHOP_OK;
	snprintf(where, sizeof where, "%.255s line %u", path, number);
	equals = strchr(line, '=');
	if (!equals)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s: it is not of the form name = value",
			       where);
	*equals = '\0';
	char *name = trim(line);
	const struct oh_option_row *row = find_row(name, strlen(name));
	if (!row)
		return fail_unknown(where, name, error);
	origins[row - oh_option_rows] = OH_ORIGIN_FILE;
	return set_from(options, row, where, trim(equals + 1), error);
}

/* The config file, a piece at a time. */
struct reader {
	int fd;
	off_t at; /* in the file, of what comes after the piece */
	size_t next, end;
	char piece[1024];
};

/* The next byte, -1 at the end of the file or of what can be read of it: then *failed is an errno. */
static int
next_byte(struct reader *reader, int *failed)
{
	if (reader->next == reader->end) {
		ssize_t got = oh_pread_full(reader->fd, reader->piece, sizeof reader->piece, reader->at,
					    failed);
		if (got <= 0)
			return -1;
		reader->at += got;
		reader->next = 0;
		reader->end = (size_t)got;
	}
	return (unsigned char)reader->piece[reader->next++];
}

/* One line of the file, without its newline. *more is 0 at the end of the file. */
static onehop_status
next_line(struct reader *reader, const char *path, uint32_t number, char line[LINE_BYTES], int *more,
	  struct onehop_error *error)
{
	size_t bytes = 0;
	int c, failed = 0;
	while ((c = next_byte(reader, &failed)) >= 0 && c != '\n') {
		if (c == '\0' || bytes + 1 == LINE_BYTES)
			return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%.255s line %u: %s", path,
				       number,
				       c ? "it is too long, of more than 1023 bytes"
					 : "it holds a NUL byte");
		line[bytes++] = (char)c;
	}
	line[bytes] = '\0';
	*more = c >= 0 || bytes > 0;
	if (failed)
		return oh_fail_errno(error, failed, "%s: cannot read the config file", path);
	return ONEHOP_OK;
}

static onehop_status
read_file(const char *path, struct onehop_runtime_options *options,
	  enum oh_option_origin *origins, struct onehop_error *error)
{
	char line[LINE_BYTES];
	struct reader reader = {.fd = oh_sys.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
	onehop_status status = ONEHOP_OK;
	if (reader.fd < 0) {
		status = oh_fail_errno(error, errno, "%s: cannot open the config file", path);
		oh_remedy(error, "correct or unset ONEHOP_CONFIG");
		return status;
	}
	int more = 1;
	for (uint32_t number = 1; !status && more; number++) {
		status = next_line(&reader, path, number, line, &more, error);
		if (!status && more)
			status = read_line(path, number, line, options, origins, error);
	}
	oh_sys.close(reader.fd);
	return status;
}

/* The caller may have been built with an older, shorter struct. */
static onehop_status
take_caller(const struct onehop_runtime_options *caller, struct onehop_runtime_options *options,
	    enum oh_option_origin *origins, struct onehop_error *error)
{
	for (uint32_t i = 0; i < oh_option_count; i++) {
		const struct oh_option_row *row = &oh_option_rows[i];
		char text[OH_OPTION_TEXT];
		uint64_t value;
		if (row->offset + sizeof value > caller->size)
			return ONEHOP_OK;
		value = oh_option_get(caller, row);
		if (value == ONEHOP_UNSET)
			continue;
		int is_auto = value == ONEHOP_AUTO && row->can_be_auto;
		if (!is_auto && (value < row->min || value > row->max)) {
			snprintf(text, sizeof text, "%llu", (unsigned long long)value);
			return fail_value(row, "options", text, error);
		}
		*field(options, row) = value;
		origins[i] = OH_ORIGIN_CALLER;
	}
	return ONEHOP_OK;
}

onehop_status
oh_options_resolve(const struct onehop_runtime_options *caller,
		   struct onehop_runtime_options *resolved, enum oh_option_origin *origins,
		   struct onehop_error *error)
{
	struct onehop_runtime_options options;
	onehop_status status = ONEHOP_OK;
	const char *path = getenv("ONEHOP_CONFIG");
	options.size = sizeof options;
	options.reserved = 0;
	if (caller && caller->size < offsetof(struct onehop_runtime_options, threads))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "the options were not made by onehop_runtime_options_init()");
	for (uint32_t i = 0; i < oh_option_count; i++) {
		*field(&options, &oh_option_rows[i]) = oh_option_rows[i].fallback;
		origins[i] = OH_ORIGIN_DEFAULT;
	}
	if (path && *path)
		status = read_file(path, &options, origins, error);
	if (!status)
		status = read_environment(&options, origins, error);
	if (!status && caller)
		status = take_caller(caller, &options, origins, error);
	if (!status)
		*resolved = options;
	return status;
}
