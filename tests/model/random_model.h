/* Random models, random tensor-parallel plans over them, and the whole put together again from
 * every rank's parts. Shared by tests that read files by hand and those that use the engine. */
#ifndef OH_TESTS_MODEL_RANDOM_MODEL_H
#define OH_TESTS_MODEL_RANDOM_MODEL_H

#include "opened.h"

#define TENSORS_MOST 24

struct random_model {
	struct onehop_model *model;
	uint64_t count;
	uint64_t salt;
	char *whole[TENSORS_MOST];  /* each tensor's bytes, in the model's order */
	char *joined[TENSORS_MOST]; /* the same, from parts */
	char *seen[TENSORS_MOST];   /* how often each byte came */
};

/* A shape as dims, outermost first, whose innermost is a multiple of block. Returns elements. */
static uint64_t
random_shape(struct random *random, uint32_t block, uint32_t rank, uint64_t dims[8])
{
	uint64_t elements = 1;
	for (uint32_t d = 0; d < rank; d++) {
		dims[d] = 1 + random_below(random, d == 0 ? 40 : 9);
		if (d + 1 == rank && block > 1)
			dims[d] = block * random_below(random, 7);
		else if (d + 1 == rank)
			dims[d] *= 1 + random_below(random, 4);
		if (random_below(random, 20) == 0)
			dims[d] = 0;
		elements *= dims[d];
	}
	return elements;
}

UNUSED static void
add_random_st(struct maker *maker, struct random *random, const char *name)
{
	static const struct {
		const char *name;
		uint32_t block, bytes;
	} types[] = {{"U8", 1, 1}, {"BF16", 1, 2}, {"F32", 1, 4}, {"F64", 1, 8},
		     {"F4", 2, 1}, {"F6_E2M3", 4, 3}};
	uint64_t which = random_below(random, 6), dims[8], elements;
	uint32_t rank = (uint32_t)random_below(random, 5);
	char shape[128] = "[";
	if (types[which].block > 1 && rank == 0)
		rank = 1;
	elements = random_shape(random, types[which].block, rank, dims);
	for (uint32_t d = 0; d < rank; d++)
		snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%" PRIu64,
			 d ? "," : "", dims[d]);
	strcat(shape, "]");
	st_add(maker, name, types[which].name, shape,
	       elements / types[which].block * types[which].bytes);
}

UNUSED static void
add_random_gg(struct maker *maker, struct random *random, const char *name)
{
	static const struct {
		uint32_t id, block, bytes;
	} types[] = {{0, 1, 4}, {24, 1, 1}, {2, 32, 18}, {12, 256, 144}, {39, 32, 17}};
	uint64_t which = random_below(random, 5), dims[8], reversed[8], elements;
	uint32_t rank = 1 + (uint32_t)random_below(random, 4);
	elements = random_shape(random, types[which].block, rank, dims);
	for (uint32_t d = 0; d < rank; d++)
		reversed[d] = dims[rank - 1 - d];
	gg_add(maker, name, types[which].id, rank, reversed,
	       elements / types[which].block * types[which].bytes);
}

/* Writes a model of one or more files into folder and opens it. */
UNUSED static void
random_model_make(struct random_model *random_model, struct random *random, const char *folder)
{
	uint64_t files = 1 + random_below(random, 3), per_file = 1 + random_below(random, 8);
	int is_gguf = random_below(random, 3) == 0;
	char path[128], name[64];
	memset(random_model, 0, sizeof *random_model);
	random_model->salt = random_next(random);
	scratch_clear(folder);
	for (uint64_t f = 0; f < (is_gguf ? 1 : files); f++) {
		struct maker maker = {.salt = random_model->salt};
		for (uint64_t i = 0; i < per_file; i++) {
			snprintf(name, sizeof name, "f%" PRIu64 ".t%" PRIu64, f, i);
			if (is_gguf)
				add_random_gg(&maker, random, name);
			else
				add_random_st(&maker, random, name);
		}
		snprintf(path, sizeof path, "%s/%" PRIu64 ".%s", folder, f,
			 is_gguf ? "gguf" : "safetensors");
		if (is_gguf)
			gg_write(&maker, scratch(path));
		else
			st_write(&maker, scratch(path));
	}
	random_model->model = open_model(scratch(folder));
	need(random_model->model != NULL, error.message);
	random_model->count = info_of(random_model->model).tensor_count;
	for (uint64_t i = 0; i < random_model->count; i++) {
		struct onehop_tensor tensor = tensor_at(random_model->model, i);
		random_model->whole[i] = malloc(tensor.bytes + 1);
		random_model->joined[i] = calloc(tensor.bytes + 1, 1);
		random_model->seen[i] = calloc(tensor.bytes + 1, 1);
		fill(random_model->whole[i], tensor.bytes, tensor.name, random_model->salt);
	}
}

UNUSED static void
random_model_free(struct random_model *random_model)
{
	for (uint64_t i = 0; i < random_model->count; i++) {
		free(random_model->whole[i]);
		free(random_model->joined[i]);
		free(random_model->seen[i]);
	}
	onehop_model_close(random_model->model);
}

UNUSED static void
random_model_clear(struct random_model *random_model)
{
	for (uint64_t i = 0; i < random_model->count; i++) {
		uint64_t bytes = tensor_at(random_model->model, i).bytes;
		memset(random_model->joined[i], 0, bytes);
		memset(random_model->seen[i], 0, bytes);
	}
}

/* Puts an item's bytes, as they lie in the arena, to where they belong in the whole tensor: by
 * elements and dimensions alone, nothing is known of rows and strides here. */
UNUSED static void
join_item(struct random_model *random_model, const struct onehop_item *item, const char *bytes)
{
	struct onehop_tensor tensor = tensor_at(random_model->model, item->tensor);
	uint64_t outer = 1, inner = 1, at = 0, whole;
	char *joined = random_model->joined[item->tensor], *seen = random_model->seen[item->tensor];
	if (item->split_dim < 0) {
		memcpy(joined, bytes, tensor.bytes);
		for (uint64_t i = 0; i < tensor.bytes; i++)
			seen[i]++;
		return;
	}
	if (!tensor.bytes)
		return;
	whole = tensor.shape[item->split_dim];
	for (int32_t d = 0; d < item->split_dim; d++)
		outer *= tensor.shape[d];
	for (uint32_t d = (uint32_t)item->split_dim + 1; d < tensor.rank; d++)
		inner *= tensor.shape[d];
	for (uint64_t o = 0; o < outer; o++) {
		uint64_t from = (o * whole + item->split_begin) * inner;
		uint64_t to = from + item->split_extent * inner;
		from = from / tensor.block_elements * tensor.block_bytes;
		to = to / tensor.block_elements * tensor.block_bytes;
		for (; from < to; from++) {
			joined[from] = bytes[at++];
			seen[from]++;
		}
	}
}

/* Rules of random dimensions for the tensors, some of them for none. */
struct random_plan {
	struct onehop_tp_rule rules[TENSORS_MOST];
	char patterns[TENSORS_MOST][64];
	struct onehop_select_options options;
	int is_split[TENSORS_MOST]; /* by tensor */
};

UNUSED static void
random_plan_make(struct random_plan *plan, const struct random_model *random_model,
		 struct random *random)
{
	memset(plan, 0, sizeof *plan);
	onehop_select_options_init(&plan->options);
	plan->options.tp_size = 1 + (uint32_t)random_below(random, 6);
	plan->options.tp_uneven = (uint32_t)random_below(random, 2);
	plan->options.tp_rules = plan->rules;
	for (uint64_t i = 0; i < random_model->count; i++) {
		struct onehop_tensor tensor = tensor_at(random_model->model, i);
		uint64_t n = plan->options.tp_rule_count;
		if (!tensor.rank || random_below(random, 6) == 0)
			continue;
		snprintf(plan->patterns[n], sizeof plan->patterns[n], "%s", tensor.name);
		plan->rules[n].pattern = plan->patterns[n];
		plan->rules[n].dim = (int64_t)random_below(random, tensor.rank);
		plan->options.tp_rule_count++;
	}
}

/* After all ranks: each byte of a split tensor came once, of a whole one from every rank. */
UNUSED static void
check_joined(const struct random_model *random_model, const struct random_plan *plan)
{
	for (uint64_t i = 0; i < random_model->count; i++) {
		struct onehop_tensor tensor = tensor_at(random_model->model, i);
		int times = plan->is_split[i] ? 1 : (int)plan->options.tp_size;
		CHECK(memcmp(random_model->whole[i], random_model->joined[i], tensor.bytes) == 0);
		for (uint64_t b = 0; b < tensor.bytes; b++)
			CHECK_EQ(random_model->seen[i][b], times);
	}
}

#endif
