/* Loads a model onto the first GPU, or into host memory where there is none, and says how. */
#include <onehop/onehop.h>
#include <stdio.h>

int
main(int argc, char **argv)
{
	struct onehop_runtime *runtime = NULL;
	struct onehop_model *model = NULL;
	struct onehop_selection *all = NULL;
	struct onehop_buffer *arena = NULL;
	struct onehop_completion done = {.size = sizeof done};
	struct onehop_error error = {0};
	if (argc != 2)
		return fprintf(stderr, "usage: load_model PATH\n"), 2;
	if (onehop_runtime_create(NULL, &runtime, &error))
		return fprintf(stderr, "load_model: %s; %s\n", error.message, error.remedy), 1;
	const char *device = onehop_cuda_device_count(runtime) ? "cuda:0" : "host";
	if (!onehop_model_open(runtime, argv[1], &model, &error) &&
	    !onehop_model_select(model, NULL, &all, &error) &&
	    !onehop_model_load(all, device, &arena, &done, &error)) {
		double seconds = done.total_ns / 1e9;
		printf("%llu bytes on %s in %.4f s", (unsigned long long)done.bytes, device, seconds);
		printf(" (%.2f GB/s)\n", seconds > 0 ? done.bytes / 1e9 / seconds : 0.0);
		for (uint32_t route = 0; route < ONEHOP_ROUTE_COUNT; route++)
			printf("%s: %llu bytes\n", onehop_route_name(route),
			       (unsigned long long)done.route_bytes[route]);
		for (uint32_t bit = 1; bit; bit <<= 1)
			if (done.reasons & bit)
				printf("%s; %s\n", onehop_reason_text(bit), onehop_reason_remedy(bit));
	} else {
		fprintf(stderr, "load_model: %s; %s\n", error.message, error.remedy);
	}
	onehop_buffer_free(arena);
	onehop_selection_destroy(all);
	onehop_model_close(model);
	onehop_runtime_destroy(runtime);
	return error.status ? 1 : 0;
}
