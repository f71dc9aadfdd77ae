/* A whole load, small and with all that is special about larger ones: a folder with an index and
 * two files, a tensor of which this rank has a strided part, more slices than blocks, more windows
 * than a ring holds. And what must be so after a fault: nothing is left behind, the runtime that
 * survived loads right, and so does the next one.
 */
#ifndef OH_TESTS_FAULT_LOAD_H
#define OH_TESTS_FAULT_LOAD_H

#include "fault/fault.h"

#include "driver/extra.h"

#include <onehop/onehop.h>

#include <dlfcn.h>

#define LOAD_ROWS 24
#define LOAD_COLUMNS 40
#define LOAD_ARENA (UINT64_C(256) << 10) /* more than it needs */
#define LOAD_ITEMS 5

static const struct {
	const char *name;
	const char *shape;
	uint64_t bytes;
	int file;
} load_tensors[] = {
	{"bias", "[7]", 7, 0},
	{"big", "[50001]", 50001, 0},
	{"emb", "[24,40]", LOAD_ROWS * LOAD_COLUMNS, 0},
	{"empty", "[0]", 0, 1},
	{"head", "[33000]", 33000, 1},
};

static const char *load_device; /* TEST_DEVICE: "host", the default, or "cuda:0" */
static const char *load_route;  /* TEST_ROUTE: the option route */
static const char *load_cache;  /* TEST_CACHE: the option cache; with it, look is always */
static char load_path[256];     /* of the model */
static char load_index[300];    /* of its index */
static struct fake_controls load_driver; /* NULLs without the look-alike */
static struct fake_outstanding load_held; /* by the test itself */
static uint8_t load_got[LOAD_ARENA];

struct outcome {
	onehop_status status;
	struct onehop_error error;
	int right; /* the bytes, where the status is OK */
};

UNUSED static void
load_write_model(void)
{
	struct maker makers[2] = {{0}, {0}};
	char index[1024] = "{\"weight_map\":{";
	for (size_t i = 0; i < LOAD_ITEMS; i++) {
		size_t used = strlen(index);
		st_add(&makers[load_tensors[i].file], load_tensors[i].name, "U8",
		       load_tensors[i].shape, load_tensors[i].bytes);
		snprintf(index + used, sizeof index - used, "%s\"%s\":\"%c.safetensors\"",
			 i ? "," : "", load_tensors[i].name, 'a' + load_tensors[i].file);
	}
	strcat(index, "}}");
	st_write(&makers[0], scratch("model/a.safetensors"));
	st_write(&makers[1], scratch("model/b.safetensors"));
	snprintf(load_path, sizeof load_path, "%s", scratch("model"));
	snprintf(load_index, sizeof load_index, "%s/model.safetensors.index.json", load_path);
	write_text(load_index, index);
}

/* Once, with the table of system calls as it is. */
UNUSED static void
load_begin(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	const char *device = getenv("TEST_DEVICE");
	load_device = device = device ? device : "host";
	load_route = getenv("TEST_ROUTE");
	load_cache = getenv("TEST_CACHE");
	load_write_model();
#define LOAD_CONTROL(field, name, arguments, type)                                                 \
	if (library)                                                                               \
		*(void **)&load_driver.field = dlsym(library, #name);
	FAKE_CONTROLS(LOAD_CONTROL)
#undef LOAD_CONTROL
	need(strcmp(device, "host") == 0 || load_driver.fail, "the look-alike driver is not there");
	/* It opens what it keeps for good. */
	if (strcmp(device, "host") != 0)
		printf("# seed of the driver %" PRIu64 "\n", load_driver.seed());
	fault_install();
}

/* Of the item as this rank has it: columns 20 to 39 of emb, all else whole. */
static uint64_t
load_want(const struct onehop_item *item, uint8_t *want)
{
	static _Thread_local uint8_t whole[LOAD_ARENA];
	const uint64_t half = LOAD_COLUMNS / 2;
	uint64_t bytes = load_tensors[item->tensor].bytes;
	fill(whole, bytes, load_tensors[item->tensor].name, 0);
	if (item->split_dim < 0) {
		memcpy(want, whole, bytes);
		return bytes;
	}
	for (uint64_t row = 0; row < LOAD_ROWS; row++)
		memcpy(want + row * half, whole + row * LOAD_COLUMNS + half, half);
	return LOAD_ROWS * half;
}

static int
load_is_right(const struct onehop_selection *selection, const uint8_t *got)
{
	static _Thread_local uint8_t want[LOAD_ARENA];
	for (uint64_t i = 0; i < LOAD_ITEMS; i++) {
		struct onehop_item item = {.size = sizeof item};
		if (onehop_selection_at(selection, i, &item))
			return 0;
		uint64_t bytes = load_want(&item, want);
		if (bytes != item.bytes || memcmp(got + item.arena_offset, want, bytes) != 0)
			return 0;
	}
	return 1;
}

static onehop_status
load_runtime(struct onehop_runtime **runtime, struct onehop_error *error)
{
	struct onehop_runtime_options options;
	onehop_runtime_options_init(&options);
	options.threads = 2;
	options.ring_bytes = 64 << 10;
	options.block_bytes = 16 << 10;
	options.slice_bytes = 4 << 10;
	if (load_route)
		onehop_runtime_options_set(&options, "route", load_route, NULL);
	if (load_cache) {
		onehop_runtime_options_set(&options, "cache", load_cache, NULL);
		onehop_runtime_options_set(&options, "look", "always", NULL);
	}
	return onehop_runtime_create(&options, runtime, error);
}

/* All items, each once. */
static onehop_status
load_arrivals(struct onehop_transfer *transfer, int *all, struct onehop_error *error)
{
	int times[LOAD_ITEMS] = {0};
	uint64_t extent;
	onehop_status status;
	*all = 1;
	while ((status = onehop_transfer_next(transfer, ONEHOP_FOREVER, &extent, error)) == ONEHOP_OK)
		if (extent >= LOAD_ITEMS || times[extent]++)
			*all = 0;
	for (int i = 0; i < LOAD_ITEMS && status == ONEHOP_END; i++)
		if (!times[i])
			*all = 0;
	return status == ONEHOP_END ? ONEHOP_OK : status;
}

struct load_parts {
	struct onehop_model *model;
	struct onehop_selection *selection;
	struct onehop_buffer *buffer;
	struct onehop_plan *plan;
	struct onehop_transfer *transfer;
};

static onehop_status
load_steps(struct onehop_runtime *runtime, struct load_parts *p, uint8_t *got, int *right,
	   struct onehop_error *error)
{
	struct onehop_selection_info info = {.size = sizeof info};
	struct onehop_select_options options;
	struct onehop_tp_rule rule = {"emb", 1};
	int all = 0;
	onehop_select_options_init(&options);
	options.tp_rank = 1;
	options.tp_size = 2;
	options.tp_rules = &rule;
	options.tp_rule_count = 1;
	onehop_status status = onehop_model_open(runtime, load_path, &p->model, error);
	if (!status)
		status = onehop_model_select(p->model, &options, &p->selection, error);
	if (!status)
		status = onehop_selection_query(p->selection, &info);
	if (!status)
		status = onehop_buffer_alloc(runtime, load_device, info.arena_bytes, &p->buffer, error);
	if (!status)
		status = onehop_model_plan(p->selection, p->buffer, 0, &p->plan, error);
	if (!status)
		status = onehop_transfer_prepare(p->plan, &p->transfer, error);
	if (!status)
		status = onehop_transfer_start(p->transfer, NULL, error);
	if (!status)
		status = load_arrivals(p->transfer, &all, error);
	if (!status)
		status = onehop_transfer_wait(p->transfer, ONEHOP_FOREVER, NULL, error);
	if (!status)
		status = onehop_buffer_read(p->buffer, 0, got, info.arena_bytes, error);
	*right = !status && all && info.count == LOAD_ITEMS && load_is_right(p->selection, got);
	return status;
}

/* A load with the runtime, which is made if there is none. got: LOAD_ARENA bytes. */
UNUSED static void
load_with(struct onehop_runtime **runtime, uint8_t *got, struct outcome *out)
{
	struct load_parts parts = {0};
	memset(out, 0, sizeof *out);
	memset(got, 0xEE, LOAD_ARENA);
	if (!*runtime)
		out->status = load_runtime(runtime, &out->error);
	if (!out->status)
		out->status = load_steps(*runtime, &parts, got, &out->right, &out->error);
	onehop_transfer_destroy(parts.transfer);
	onehop_plan_destroy(parts.plan);
	onehop_buffer_free(parts.buffer);
	onehop_selection_destroy(parts.selection);
	onehop_model_close(parts.model);
}

UNUSED static const char *
load_wrong(const struct outcome *o)
{
	static char text[1024];
	if (!o->status && !o->right)
		return "success, and the bytes are wrong";
	if (!o->status)
		return NULL;
	snprintf(text, sizeof text, "%s: %s", onehop_status_name(o->status), o->error.message);
	return text;
}

/* NULL, or what is left. */
static const char *
load_left(int descriptors)
{
	static char text[256];
	struct fake_outstanding now = {0};
	if (count_descriptors() != descriptors)
		return "descriptors are left open";
	if (atomic_load(&fault_mapped) != 0)
		return "memory is left mapped";
	if (strcmp(load_device, "host") == 0)
		return NULL;
	load_driver.outstanding(&now);
	if (memcmp(&now, &load_held, sizeof now) == 0)
		return NULL;
	snprintf(text, sizeof text,
		 "left in the driver: %d allocations, %d registrations, %d streams, %d events, %d "
		 "contexts, %d primaries, %" PRIu64 " bytes; %d misuses",
		 now.allocations, now.registrations, now.streams, now.events, now.contexts,
		 now.primaries, now.bytes, now.misuses);
	return text;
}

/* What makes faults. */
struct injector {
	const char *name;
	void (*arm)(long number);
	long (*disarm)(void); /* how many calls were struck */
	/* NULL, or what is wrong with a load that struck calls were in and that did not come to OK
	 * or whose bytes are right. */
	const char *(*judge)(const struct outcome *outcome);
	int keeps; /* 1: a runtime that such a fault went through must be as good as before */
};

struct tally {
	long tried;  /* faults */
	long failed; /* loads that they ended */
};

/* A failed load tells what it failed of, in one line. */
static const char *
load_judge(const struct injector *in, const struct outcome *o, long struck)
{
	if (!o->status)
		return o->right ? NULL : "success, and the bytes are wrong";
	if (!struck)
		return load_wrong(o);
	if (o->error.status != o->status)
		return "the status is not that of the error";
	if (!o->error.message[0] || strpbrk(o->error.message, "\n\r"))
		return "the message is not one line";
	return in->judge ? in->judge(o) : NULL;
}

static const char *
load_strike_once(const struct injector *in, long number, int to_the_end, struct tally *tally,
		 long *struck)
{
	struct onehop_runtime *runtime = NULL;
	static struct outcome faulty, again;
	const char *wrong = NULL;
	int descriptors = count_descriptors();
	in->arm(number);
	load_with(&runtime, load_got, &faulty);
	if (to_the_end) {
		onehop_runtime_destroy(runtime);
		runtime = NULL;
	}
	*struck = in->disarm();
	tally->tried += *struck;
	tally->failed += faulty.status != ONEHOP_OK;
	wrong = load_judge(in, &faulty, *struck);
	if (runtime && in->keeps && !wrong) {
		load_with(&runtime, load_got, &again);
		if (load_wrong(&again)) {
			printf("# again with the same runtime: %s\n", load_wrong(&again));
			wrong = "the runtime is not as good as before";
		}
	}
	onehop_runtime_destroy(runtime);
	if (!wrong)
		wrong = load_left(descriptors);
	if (wrong && faulty.status)
		printf("# it said: %s\n", load_wrong(&faulty));
	return wrong;
}

/* The n-th call struck, first in a load whose runtime then loads again, then in one from nothing to
 * nothing; then a load in which nothing fails. *struck: how many calls were. Returns NULL, or what
 * is wrong. */
UNUSED static const char *
load_strike(const struct injector *in, long number, struct tally *tally, long *struck)
{
	static struct outcome fresh;
	struct onehop_runtime *runtime = NULL;
	long first = 0, second = 0;
	int descriptors = count_descriptors();
	const char *wrong = load_strike_once(in, number, 0, tally, &first);
	if (!wrong)
		wrong = load_strike_once(in, number, 1, tally, &second);
	*struck = first + second;
	if (!wrong) {
		load_with(&runtime, load_got, &fresh);
		onehop_runtime_destroy(runtime);
		wrong = load_wrong(&fresh);
		if (!wrong)
			wrong = load_left(descriptors);
	}
	return wrong;
}

/* For n = 0, 1, 2, ... until nothing is struck. */
UNUSED static void
load_strike_each(const struct injector *in, long least)
{
	struct tally tally = {0};
	long struck = 1;
	for (long n = 0; struck; n++) {
		const char *wrong = load_strike(in, n, &tally, &struck);
		if (wrong) {
			test_fail(__FILE__, __LINE__, "%s, number %ld: %s", in->name, n, wrong);
			return;
		}
	}
	printf("# %s: %ld faults, %ld loads failed\n", in->name, tally.tried, tally.failed);
	if (tally.tried < least)
		test_fail(__FILE__, __LINE__, "%s: %ld faults, should be %ld at least", in->name,
			  tally.tried, least);
}

#endif
