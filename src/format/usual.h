/* A short cut for the entry of a tensor in the one spelling that writers of safetensors use. */
#ifndef OH_FORMAT_USUAL_H
#define OH_FORMAT_USUAL_H

#include "format/table.h"

/* Reads {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]} at text[at], with no space or one behind
 * each colon and comma. Returns 1, fills dtype, shape, rank, begin (relative to the data) and bytes
 * of *entry, and sets *end behind it. Returns 0 for anything else, right or wrong, with nothing
 * changed: the JSON parser then reads the entry and judges it. */
int oh_usual_entry(uint8_t *text, uint64_t at, uint64_t bytes, struct oh_entry *entry,
		   uint64_t *end);

#endif
