/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/measure.h: what a link can do, to hold a load's rate against.
 */
#ifndef ONEHOP_MEASURE_H
#define ONEHOP_MEASURE_H

#include <onehop/runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Copies total_bytes from pinned host memory to the GPU in pieces of piece_bytes, three times over,
 * and gives the best of the three rates in bytes a second: the ceiling of any load that reads
 * through pinned memory. The memory, here and there, is made before the clock starts and given back
 * at the end; it is no more than a few pieces each. Blocks. Any thread, but a copy of another
 * thread's to the same device spoils the figure. Fails with INVALID_ARGUMENT (no GPU's name, a size
 * of 0), NO_DEVICE, NO_MEMORY, NO_DEVICE_MEMORY, LIMIT, DRIVER. */
ONEHOP_API onehop_status onehop_measure_copy(struct onehop_runtime *runtime, const char *device,
					     uint64_t piece_bytes, uint64_t total_bytes,
					     double *bytes_per_s, struct onehop_error *error);

#ifdef __cplusplus
}
#endif
#endif
