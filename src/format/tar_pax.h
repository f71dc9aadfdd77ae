/* pax records: what of them changes where a member lies and what it is called. For format/tar. */
#ifndef OH_FORMAT_TAR_PAX_H
#define OH_FORMAT_TAR_PAX_H

#include "format/tar.h"

/* Takes count bytes of records that lie at offset `at` in the file. for_all: of a global header,
 * whose later records take the place of earlier ones. */
onehop_status oh_tar_pax_take(struct oh_tar_pax *pax, const uint8_t *bytes, uint64_t count,
			      uint64_t at, int for_all, const char *path,
			      struct onehop_error *error);

/* Copies text of given->bytes, found at given->at. One that is there must be the same. */
onehop_status oh_tar_set_name(struct oh_tar_name *name, const char *text,
			      const struct oh_tar_name *given, const char *path,
			      struct onehop_error *error);

#endif
