/* The n-th allocation fails, for n = 0, 1, 2, ... until nothing fails: each time the answer is
 * NO_MEMORY, no descriptor stays open, and (under the address sanitizer) nothing leaks.
 *
 * Allocations are counted by the linker's --wrap, so what libc allocates for itself is left alone.
 */
#include "opened.h"

#include <stdatomic.h>

static atomic_long left; /* allocations until one fails; negative: none does */
static atomic_int has_failed;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
char *__wrap_strdup(const char *text);

static int
fails(void)
{
	if (atomic_load(&left) < 0 || atomic_fetch_sub(&left, 1) != 0)
		return 0;
	atomic_store(&has_failed, 1);
	return 1;
}

void *
__wrap_malloc(size_t bytes)
{
	return fails() ? NULL : __real_malloc(bytes);
}

void *
__wrap_calloc(size_t count, size_t bytes)
{
	return fails() ? NULL : __real_calloc(count, bytes);
}

void *
__wrap_realloc(void *memory, size_t bytes)
{
	return fails() ? NULL : __real_realloc(memory, bytes);
}

char *
__wrap_strdup(const char *text)
{
	return fails() ? NULL : __real_strdup(text);
}

/* Opens, selects and loads with all options. */
static onehop_status
use(const char *path, const struct onehop_select_options *options)
{
	struct onehop_model *model;
	struct onehop_selection *selection = NULL;
	struct onehop_buffer *arena = NULL;
	onehop_status status = onehop_model_open(runtime(), path, &model, &error);
	if (status != ONEHOP_OK)
		return status;
	status = onehop_model_select(model, options, &selection, &error);
	if (status == ONEHOP_OK)
		status = onehop_model_load(selection, "host", &arena, NULL, &error);
	onehop_buffer_free(arena);
	onehop_selection_destroy(selection);
	onehop_model_close(model);
	return status;
}

static void
fail_each(const char *path, const struct onehop_select_options *options)
{
	long n = 0, failures = 0;
	int before;
	/* What the runtime keeps for its life is made by a first load. */
	CHECK_EQ(use(path, options), ONEHOP_OK);
	before = count_descriptors();
	do {
		onehop_status status;
		atomic_store(&has_failed, 0);
		atomic_store(&left, n++);
		status = use(path, options);
		atomic_store(&left, -1);
		if (status != ONEHOP_OK) {
			CHECK_EQ(status, ONEHOP_NO_MEMORY);
			CHECK(error.message[0] != '\0');
			failures++;
		}
		CHECK_EQ(count_descriptors(), before);
	} while (atomic_load(&has_failed));
	printf("# %ld allocations failed, %ld of them ended the load\n", n - 1, failures);
	CHECK(failures > 10);
}

TEST(an_indexed_folder_survives_every_failed_allocation)
{
	struct maker maker = {0};
	st_add(&maker, "emb", "F32", "[4,6]", 96);
	st_add(&maker, "extra", "F32", "[1]", 4);
	st_write(&maker, scratch("index/a.safetensors"));
	st_one(scratch("index/b.safetensors"), "head", 9, 0);
	st_one(scratch("index/c.safetensors"), "adapter", 9, 0);
	write_text(scratch("index/model.safetensors.index.json"),
		   "{\"weight_map\":{\"emb\":\"a.safetensors\",\"head\":\"b.safetensors\"}}");
	fail_each(scratch("index"), NULL);
	fail_each(scratch("index/model.safetensors.index.json"), NULL);
}

TEST(a_folder_of_several_files_survives_every_failed_allocation)
{
	st_one(scratch("several/model-00001-of-00001.safetensors"), "a", 9, 0);
	st_one(scratch("several/consolidated.safetensors"), "b", 9, 0);
	fail_each(scratch("several"), NULL);
}

TEST(a_split_gguf_survives_every_failed_allocation)
{
	struct maker maker = {0};
	uint64_t dims[1] = {8};
	for (uint16_t i = 0; i < 2; i++) {
		gg_key_u16(&maker, "split.no", i);
		gg_key_u16(&maker, "split.count", 2);
		gg_add(&maker, i ? "b" : "a", 0, 1, dims, 32);
		gg_write(&maker, scratch(i ? "split/m-00002-of-00002.gguf"
					   : "split/m-00001-of-00002.gguf"));
	}
	fail_each(scratch("split/m-00002-of-00002.gguf"), NULL);
}

TEST(a_tensor_parallel_plan_survives_every_failed_allocation)
{
	struct maker maker = {0};
	struct onehop_select_options options;
	const char *patterns[2] = {"w*", "x"};
	struct onehop_tp_rule rule = {"x", 0};
	st_add(&maker, "w", "F32", "[4,6]", 96);
	st_add(&maker, "x", "F32", "[4]", 16);
	st_write(&maker, scratch("tp.safetensors"));
	write_text(scratch("plan.json"), "{\"w*\": 1}");
	onehop_select_options_init(&options);
	options.patterns = patterns;
	options.pattern_count = 2;
	options.tp_rules = &rule;
	options.tp_rule_count = 1;
	options.tp_size = 2;
	options.tp_plan_path = scratch("plan.json");
	fail_each(scratch("tp.safetensors"), &options);
}

int
main(int argc, char **argv)
{
	atomic_store(&left, -1);
	return test_main(argc, argv);
}
