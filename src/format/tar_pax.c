/* pax records: "LENGTH KEY=VALUE\n", one after the other, LENGTH in decimal and of all of it.
 *
 * Only `path` and `size` are taken; what says that a member is sparse, or the part of one, is
 * refused, and all else is none of our business. Values are bytes: no character set is looked at.
 */
#include "format/tar_pax.h"
#include "base/arith.h"
#include "format/fail.h"

#include <stdlib.h>
#include <string.h>

struct record {
	const char *key;
	const char *value;
	uint64_t key_bytes;
	uint64_t value_bytes;
	uint64_t at; /* in the file */
};

static const char again[] = "get a good copy of it, or unpack what is left and pack that anew";

static onehop_status
refuse(struct onehop_error *error, const char *path, uint64_t at, const char *sentence)
{
	oh_refuse(error, ONEHOP_MALFORMED, path, "byte %llu: %s", (unsigned long long)at, sentence);
	oh_remedy(error, again);
	return ONEHOP_MALFORMED;
}

onehop_status
oh_tar_set_name(struct oh_tar_name *name, const char *text, const struct oh_tar_name *given,
		const char *path, struct onehop_error *error)
{
	if (name->text) {
		if (name->bytes == given->bytes && memcmp(name->text, text, name->bytes) == 0)
			return ONEHOP_OK;
		oh_refuse(error, ONEHOP_MALFORMED, path,
			  "byte %llu: a member with two names, one here and another at byte %llu",
			  (unsigned long long)given->at, (unsigned long long)name->at);
		oh_remedy(error, again);
		return ONEHOP_MALFORMED;
	}
	name->text = malloc(given->bytes);
	if (!name->text)
		return oh_fail_no_memory(error, given->bytes, "a member's name");
	memcpy(name->text, text, given->bytes);
	name->bytes = given->bytes;
	name->at = given->at;
	return ONEHOP_OK;
}

/* Decimal digits up to stop; 1 if there are none, or something else, or too many. */
static int
take_number(const char **at, const char *end, char stop, uint64_t *number)
{
	const char *from = *at;
	uint64_t value = 0;
	for (; from < end && *from >= '0' && *from <= '9'; from++)
		if (oh_mul(value, 10, &value) || oh_add(value, (uint64_t)(*from - '0'), &value))
			return 1;
	if (from == *at || from == end || *from != stop || value > INT64_MAX)
		return 1;
	*at = from + 1;
	*number = value;
	return 0;
}

/* Cuts the record that begins at *at; 1 if it is none. */
static int
take_record(const char **at, const char *end, struct record *record)
{
	const char *begin = *at;
	uint64_t length;
	if (take_number(at, end, ' ', &length) || length > (uint64_t)(end - begin))
		return 1;
	const char *last = begin + length - 1;
	if (last < *at || *last != '\n')
		return 1;
	const char *equals = memchr(*at, '=', (size_t)(last - *at));
	if (!equals || equals == *at)
		return 1;
	record->key = *at;
	record->key_bytes = (uint64_t)(equals - *at);
	record->value = equals + 1;
	record->value_bytes = (uint64_t)(last - record->value);
	*at = last + 1;
	return 0;
}

static int
is_key(const struct record *record, const char *key)
{
	return record->key_bytes == strlen(key) && memcmp(record->key, key, record->key_bytes) == 0;
}

static int
begins(const struct record *record, const char *key)
{
	size_t bytes = strlen(key);
	return record->key_bytes >= bytes && memcmp(record->key, key, bytes) == 0;
}

static onehop_status
take_path(struct oh_tar_pax *pax, const struct record *record, int for_all, const char *path,
	  struct onehop_error *error)
{
	struct oh_tar_name given = {.bytes = record->value_bytes, .at = record->at};
	if (given.bytes == 0 || memchr(record->value, 0, given.bytes))
		return refuse(error, path, record->at,
			      given.bytes ? "a NUL in a member's name" : "an empty name");
	if (given.bytes > OH_TAR_MOST_NAME) {
		oh_refuse(error, ONEHOP_UNSUPPORTED_DATA, path,
			  "byte %llu: a name of %llu bytes, and the most that is taken is %u",
			  (unsigned long long)record->at, (unsigned long long)given.bytes,
			  OH_TAR_MOST_NAME);
		oh_remedy(error, again);
		return ONEHOP_UNSUPPORTED_DATA;
	}
	if (for_all) {
		free(pax->path.text);
		pax->path.text = NULL;
	}
	return oh_tar_set_name(&pax->path, record->value, &given, path, error);
}

static onehop_status
take_size(struct oh_tar_pax *pax, const struct record *record, int for_all, const char *path,
	  struct onehop_error *error)
{
	const char *at = record->value, *end = record->value + record->value_bytes + 1;
	uint64_t size;
	/* The record's line end is what stops it. */
	if (take_number(&at, end, '\n', &size) || at != end)
		return refuse(error, path, record->at,
			      "the size in this record is no decimal number, or no file could be "
			      "so large");
	if (pax->has_size && pax->size != size && !for_all) {
		oh_refuse(error, ONEHOP_MALFORMED, path,
			  "byte %llu: a member of two sizes, one here and another at byte %llu",
			  (unsigned long long)record->at, (unsigned long long)pax->size_at);
		oh_remedy(error, again);
		return ONEHOP_MALFORMED;
	}
	pax->size = size;
	pax->size_at = record->at;
	pax->has_size = 1;
	return ONEHOP_OK;
}

/* GNU, star and Solaris each have their own word for a file with holes. */
static onehop_status
take_kind(const struct record *record, const char *path, struct onehop_error *error)
{
	int part = begins(record, "GNU.volume.") && !is_key(record, "GNU.volume.label");
	int sparse = begins(record, "GNU.sparse.") || is_key(record, "SCHILY.realsize") ||
		     is_key(record, "SUN.holesdata");
	if (!part && !sparse)
		return ONEHOP_OK;
	oh_refuse(error, ONEHOP_UNSUPPORTED_DATA, path, "byte %llu: %s",
		  (unsigned long long)record->at,
		  part ? "the rest of a member that began in another volume"
		       : "a sparse member: its bytes do not lie together");
	oh_remedy(error, "unpack the archive%s, and pack it anew without --sparse",
		  part ? " from all its volumes" : "");
	return ONEHOP_UNSUPPORTED_DATA;
}

static onehop_status
take_one(struct oh_tar_pax *pax, const struct record *record, int for_all, const char *path,
	 struct onehop_error *error)
{
	if (is_key(record, "path"))
		return take_path(pax, record, for_all, path, error);
	if (is_key(record, "size"))
		return take_size(pax, record, for_all, path, error);
	return take_kind(record, path, error);
}

/* Some writers fill the last record's block with NULs and count them. */
static int
is_filler(const char *at, const char *end)
{
	while (at < end && *at == '\0')
		at++;
	return at == end;
}

onehop_status
oh_tar_pax_take(struct oh_tar_pax *pax, const uint8_t *bytes, uint64_t count, uint64_t at,
		int for_all, const char *path, struct onehop_error *error)
{
	const char *begin = (const char *)bytes, *here = begin, *end = begin + count;
	while (here < end) {
		struct record record = {.at = at + (uint64_t)(here - begin)};
		if (*here == '\0' && is_filler(here, end))
			break;
		if (take_record(&here, end, &record))
			return refuse(error, path, record.at,
				      "what should be a pax record (LENGTH KEY=VALUE) is none");
		onehop_status status = take_one(pax, &record, for_all, path, error);
		if (status)
			return status;
	}
	return ONEHOP_OK;
}
