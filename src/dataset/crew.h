/* Work divided over a few threads for as long as it lasts. */
#ifndef OH_DATASET_CREW_H
#define OH_DATASET_CREW_H

#include <onehop/status.h>

/* Does piece `index`, on thread `worker` of those asked for. */
typedef onehop_status (*oh_crew_work)(void *context, uint32_t worker, uint64_t index,
				      struct onehop_error *error);

/* Does pieces 0 to count - 1 on the caller's thread and up to threads - 1 more; fewer will do where
 * no more can be made. Returns the failure of the first piece that failed, by its number; pieces
 * after one that failed may be left out. */
onehop_status oh_crew_run(uint32_t threads, uint64_t count, oh_crew_work work, void *context,
			  struct onehop_error *error);

#endif
