/* The option table at work: parse, resolve, show. */
#ifndef OH_BASE_OPTION_H
#define OH_BASE_OPTION_H

#include "base/error.h"

#include <onehop/options.h>

enum oh_option_kind { OH_OPTION_COUNT, OH_OPTION_BYTES, OH_OPTION_ROUTE, OH_OPTION_CACHE, OH_OPTION_LOOK };

enum oh_option_origin {
	OH_ORIGIN_DEFAULT,
	OH_ORIGIN_FILE,
	OH_ORIGIN_ENVIRONMENT,
	OH_ORIGIN_CALLER,
};

struct oh_option_row {
	const char *name;
	uint64_t fallback;
	uint64_t min;
	uint64_t max;
	const char *unit;
	const char *doc;
	size_t offset; /* of the field in struct onehop_runtime_options */
	enum oh_option_kind kind;
	int can_be_auto;
};

extern const struct oh_option_row oh_option_rows[];
extern const uint32_t oh_option_count;

/* Most that oh_option_show writes, NUL included. */
#define OH_OPTION_TEXT 128

/* A value as the environment would spell it, and the values allowed. */
void oh_option_show(const struct oh_option_row *row, uint64_t value, char text[OH_OPTION_TEXT]);
void oh_option_range(const struct oh_option_row *row, char text[OH_OPTION_TEXT]);

uint64_t oh_option_get(const struct onehop_runtime_options *options, const struct oh_option_row *row);

/* Resolves every row: caller (NULL for none), environment, config file, table. origins has
 * oh_option_count entries. */
onehop_status oh_options_resolve(const struct onehop_runtime_options *caller,
				 struct onehop_runtime_options *resolved,
				 enum oh_option_origin *origins, struct onehop_error *error);

/* The name in a list that is nearest to the one given (edit distance), or NULL if none is near. */
const char *oh_nearest(const char *name, const char *const *names, uint32_t count);

#endif
