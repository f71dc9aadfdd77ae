/* A machine under pressure and a look at pinning, for `onehop-staged`: the command, linked with
 * --wrap of the calls below.
 *
 * STAGED_PRESSURE holds seven numbers, struct onehop_pressure's fields from known on: that much is
 * added from one reading to the next. STAGED_LOG is a file that gets a line for each model that is
 * pinned, unpinned (if it is one that was pinned), opened and closed.
 */
#include <onehop/onehop.h>

#include <stdio.h>
#include <stdlib.h>

onehop_status __real_onehop_machine_pressure(struct onehop_pressure *now);
onehop_status __wrap_onehop_machine_pressure(struct onehop_pressure *now);
onehop_status __real_onehop_model_open(struct onehop_runtime *runtime, const char *path,
				       struct onehop_model **model, struct onehop_error *error);
onehop_status __wrap_onehop_model_open(struct onehop_runtime *runtime, const char *path,
				       struct onehop_model **model, struct onehop_error *error);
void __real_onehop_model_close(struct onehop_model *model);
void __wrap_onehop_model_close(struct onehop_model *model);
onehop_status __real_onehop_model_pin(struct onehop_model *model, const char *device,
				      struct onehop_error *error);
onehop_status __wrap_onehop_model_pin(struct onehop_model *model, const char *device,
				      struct onehop_error *error);
void __real_onehop_model_unpin(struct onehop_model *model);
void __wrap_onehop_model_unpin(struct onehop_model *model);

static const struct onehop_model *pinned;

static void
put(const char *word)
{
	const char *path = getenv("STAGED_LOG");
	FILE *file = path ? fopen(path, "a") : NULL;
	if (!file)
		return;
	fprintf(file, "%s\n", word);
	fclose(file);
}

onehop_status
__wrap_onehop_machine_pressure(struct onehop_pressure *now)
{
	static uint64_t calls;
	uint64_t n[7] = {0};
	const char *text = getenv("STAGED_PRESSURE");
	if (!text)
		return __real_onehop_machine_pressure(now);
	for (int i = 0; i < 7; i++) {
		char *end;
		n[i] = strtoull(text, &end, 10);
		text = end;
	}
	calls++;
	now->known = (uint32_t)n[0];
	now->throttled_periods = calls * n[1];
	now->throttled_us = calls * n[2];
	now->io_us = calls * n[3];
	now->memory_us = calls * n[4];
	now->group_io_us = calls * n[5];
	now->group_memory_us = calls * n[6];
	return ONEHOP_OK;
}

onehop_status
__wrap_onehop_model_open(struct onehop_runtime *runtime, const char *path,
			 struct onehop_model **model, struct onehop_error *error)
{
	onehop_status status = __real_onehop_model_open(runtime, path, model, error);
	if (!status)
		put("open");
	return status;
}

void
__wrap_onehop_model_close(struct onehop_model *model)
{
	if (model)
		put("close");
	__real_onehop_model_close(model);
}

onehop_status
__wrap_onehop_model_pin(struct onehop_model *model, const char *device,
			struct onehop_error *error)
{
	onehop_status status = __real_onehop_model_pin(model, device, error);
	if (!status) {
		pinned = model;
		put("pin");
	}
	return status;
}

void
__wrap_onehop_model_unpin(struct onehop_model *model)
{
	if (model && model == pinned) {
		pinned = NULL;
		put("unpin");
	}
	__real_onehop_model_unpin(model);
}
