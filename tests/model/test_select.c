/* Selecting tensors: patterns, and one rank's part of each, read by hand from the files. */
#include "random_model.h"

#include "model/glob.h"
#include "model/select.h"

static int
glob(const char *pattern, const char *name)
{
	return oh_glob_match(pattern, strlen(pattern), name, strlen(name));
}

TEST(patterns_match_as_their_characters_say)
{
	static const struct {
		const char *pattern, *name;
		int matches;
	} rows[] = {
		{"", "", 1},           {"", "a", 0},           {"*", "", 1},
		{"*", "a.b", 1},       {"a*", "a", 1},         {"a*b*c", "abc", 1},
		{"a*b*c", "axxbyyc", 1}, {"a*b*c", "axxbyy", 0}, {"*.weight", "a.weight", 1},
		{"*.weight", "a.weight2", 0}, {"?", "a", 1},   {"?", "", 0},
		{"?", "\xc3\xa9", 1},  {"??", "\xc3\xa9", 0},  {"?", "\xff", 1},
		{"[abc]", "b", 1},     {"[abc]", "d", 0},      {"[a-c]x", "bx", 1},
		{"[!a-c]", "b", 0},    {"[^a-c]", "d", 1},     {"[]]", "]", 1},
		{"[!]]", "]", 0},      {"[a-]", "-", 1},       {"[", "[", 1},
		{"a[b", "a[b", 1},     {"[*]", "*", 1},        {"[*]", "x", 0},
		{"[\xc3\xa0-\xc3\xbf]", "\xc3\xa9", 1},        {"[\xc3\xa0-\xc3\xbf]", "e", 0},
		{"***a", "xa", 1},     {"l.[0-9].*", "l.7.w", 1}, {"l.[0-9].*", "l.17.w", 0},
		{"[", "", 0},          {"[!", "[!", 1},        {"[]", "[]", 1},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (glob(rows[i].pattern, rows[i].name) != rows[i].matches)
			test_fail(__FILE__, __LINE__, "\"%s\" against \"%s\" is not %d",
				  rows[i].pattern, rows[i].name, rows[i].matches);
}

TEST(a_pattern_of_many_stars_takes_no_exponential_time)
{
	char name[2000], pattern[200];
	memset(name, 'a', sizeof name);
	for (size_t i = 0; i + 1 < sizeof pattern; i += 2)
		memcpy(pattern + i, "*a", 2);
	pattern[198] = 'b';
	CHECK(!oh_glob_match(pattern, 199, name, sizeof name));
}

static struct onehop_model *
open_llama(void)
{
	struct maker maker = {0};
	st_add(&maker, "embed.weight", "BF16", "[8,6]", 96);
	st_add(&maker, "layers.0.q.weight", "BF16", "[12,4]", 96);
	st_add(&maker, "layers.0.o.weight", "BF16", "[4,12]", 96);
	st_add(&maker, "layers.1.q.weight", "BF16", "[12,4]", 96);
	st_add(&maker, "layers.1.o.weight", "BF16", "[4,12]", 96);
	st_add(&maker, "odd[0]*.bias", "F32", "[5]", 20);
	st_add(&maker, "scale", "F32", "[]", 4);
	st_add(&maker, "packed", "F4", "[4,6]", 12);
	st_write(&maker, scratch("llama.safetensors"));
	return open_model(scratch("llama.safetensors"));
}

/* Selects by options and writes the names, spaces between, or the error's status. */
static void
select_names(struct onehop_model *model, const struct onehop_select_options *options, char out[512])
{
	struct onehop_selection *selection;
	struct onehop_selection_info info = {.size = sizeof info};
	struct onehop_item item = {.size = sizeof item};
	out[0] = '\0';
	memset(&error, 0, sizeof error);
	if (onehop_model_select(model, options, &selection, &error) != ONEHOP_OK) {
		snprintf(out, 512, "%s", onehop_status_name(error.status));
		return;
	}
	onehop_selection_query(selection, &info);
	for (uint64_t i = 0; i < info.count; i++) {
		onehop_selection_at(selection, i, &item);
		snprintf(out + strlen(out), 512 - strlen(out), "%s%s", i ? " " : "",
			 tensor_at(model, item.tensor).name);
	}
	onehop_selection_destroy(selection);
}

TEST(names_and_patterns_select_in_the_models_order)
{
	struct onehop_model *model = open_llama();
	struct onehop_select_options options;
	const char *patterns[3] = {"layers.?.o.*", "embed.weight", "layers.1.*"};
	char names[512];
	CHECK(model != NULL);
	onehop_select_options_init(&options);
	options.patterns = patterns;
	options.pattern_count = 3;
	select_names(model, &options, names);
	CHECK_STR(names, "embed.weight layers.0.o.weight layers.1.q.weight layers.1.o.weight");
	/* A name as it stands is no pattern. */
	patterns[0] = "odd[0]*.bias";
	options.pattern_count = 1;
	select_names(model, &options, names);
	CHECK_STR(names, "odd[0]*.bias");
	options.pattern_count = 0;
	select_names(model, &options, names);
	CHECK_HOLDS(names, "packed");
	select_names(model, NULL, names);
	CHECK_HOLDS(names, "embed.weight");
	onehop_model_close(model);
}

TEST(each_pattern_must_match_a_tensor)
{
	struct onehop_model *model = open_llama();
	struct onehop_select_options options;
	const char *patterns[2] = {"embed.*", "layers.[2-9].*"};
	char names[512];
	CHECK(model != NULL);
	onehop_select_options_init(&options);
	options.patterns = patterns;
	options.pattern_count = 2;
	select_names(model, &options, names);
	CHECK_STR(names, "NO_SUCH_TENSOR");
	CHECK_HOLDS(error.message, "\"layers.[2-9].*\"");
	patterns[1] = "layers.0.p.weight";
	select_names(model, &options, names);
	CHECK_STR(names, "NO_SUCH_TENSOR");
	CHECK_HOLDS(error.message, "\"layers.0.p.weight\"");
	CHECK_HOLDS(error.remedy, "\"layers.0.");
	patterns[1] = NULL;
	select_names(model, &options, names);
	CHECK_STR(names, "INVALID_ARGUMENT");
	onehop_model_close(model);
}

/* Selects all tensors with one rule and returns the first item whose tensor is named. */
static struct onehop_item
split_item(struct onehop_model *model, const char *name, int64_t dim, uint32_t rank, uint32_t size,
	   uint32_t uneven)
{
	struct onehop_tp_rule rule = {name, dim};
	struct onehop_select_options options;
	struct onehop_selection *selection;
	struct onehop_item item = {.size = sizeof item};
	onehop_select_options_init(&options);
	options.tp_rank = rank;
	options.tp_size = size;
	options.tp_uneven = uneven;
	options.tp_rules = &rule;
	options.tp_rule_count = 1;
	options.patterns = &name;
	options.pattern_count = 1;
	memset(&error, 0, sizeof error);
	if (onehop_model_select(model, &options, &selection, &error) != ONEHOP_OK) {
		item.bytes = UINT64_MAX;
		return item;
	}
	onehop_selection_at(selection, 0, &item);
	onehop_selection_destroy(selection);
	return item;
}

TEST(a_rank_gets_its_share_of_a_dimension)
{
	struct onehop_model *model = open_llama();
	struct onehop_item item;
	CHECK(model != NULL);
	item = split_item(model, "layers.0.q.weight", 0, 1, 3, 0);
	CHECK_EQ(item.split_dim, 0);
	CHECK_EQ(item.split_begin, 4);
	CHECK_EQ(item.split_extent, 4);
	CHECK_EQ(item.shape[0], 4);
	CHECK_EQ(item.shape[1], 4);
	CHECK_EQ(item.bytes, 32);
	item = split_item(model, "layers.0.o.weight", 1, 2, 3, 0);
	CHECK_EQ(item.split_dim, 1);
	CHECK_EQ(item.split_begin, 8);
	CHECK_EQ(item.shape[0], 4);
	CHECK_EQ(item.shape[1], 4);
	CHECK_EQ(item.bytes, 32);
	item = split_item(model, "layers.0.o.weight", -1, 2, 3, 0);
	CHECK_EQ(item.split_dim, -1);
	CHECK_EQ(item.bytes, 96);
	/* F4's innermost dimension is dealt out in pairs. */
	item = split_item(model, "packed", 1, 1, 3, 0);
	CHECK_EQ(item.split_begin, 2);
	CHECK_EQ(item.bytes, 4);
	onehop_model_close(model);
}

TEST(an_uneven_dimension_is_refused_or_the_first_ranks_get_one_more)
{
	struct onehop_model *model = open_llama();
	struct onehop_item item;
	CHECK(model != NULL);
	item = split_item(model, "odd[0]*.bias", 0, 0, 3, ONEHOP_TP_REFUSE);
	CHECK(item.bytes == UINT64_MAX);
	CHECK_EQ(error.status, ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "odd[0]*.bias");
	CHECK_HOLDS(error.message, "[5]");
	CHECK_HOLDS(error.message, "3 ranks");
	for (uint32_t rank = 0; rank < 3; rank++) {
		item = split_item(model, "odd[0]*.bias", 0, rank, 3, ONEHOP_TP_SPLIT);
		CHECK_EQ(item.split_extent, rank < 2 ? 2 : 1);
		CHECK_EQ(item.split_begin, 2 * rank);
	}
	/* More ranks than indexes: the last get nothing. */
	item = split_item(model, "odd[0]*.bias", 0, 6, 7, ONEHOP_TP_SPLIT);
	CHECK_EQ(item.split_extent, 0);
	CHECK_EQ(item.bytes, 0);
	onehop_model_close(model);
}

TEST(a_split_that_cuts_a_byte_or_a_block_is_refused_by_every_rank)
{
	struct onehop_model *model;
	struct maker maker = {0};
	uint64_t dims[2] = {96, 2};
	st_add(&maker, "f4", "F4", "[2,3]", 3);
	st_add(&maker, "deep", "F4", "[2,2,3]", 6);
	st_add(&maker, "thin", "F4", "[2,1,3]", 3);
	st_write(&maker, scratch("cut.safetensors"));
	model = open_model(scratch("cut.safetensors"));
	CHECK(model != NULL);
	for (uint32_t rank = 0; rank < 2; rank++) {
		CHECK(split_item(model, "f4", 0, rank, 2, rank).bytes == UINT64_MAX);
		CHECK_HOLDS(error.message, "cut");
		CHECK_HOLDS(error.message, "\"f4\"");
		CHECK(split_item(model, "f4", 1, rank, 3, 0).bytes == UINT64_MAX);
		CHECK(split_item(model, "deep", 1, rank, 2, 0).bytes == UINT64_MAX);
		CHECK_EQ(split_item(model, "deep", 0, rank, 2, 0).bytes, 3);
		/* One rank gets all of it: nothing is cut. */
		CHECK_EQ(split_item(model, "thin", 1, rank, 2, 1).bytes, rank ? 0 : 3);
	}
	onehop_model_close(model);
	gg_add(&maker, "q4", 2, 2, dims, 2 * 3 * 18);
	gg_write(&maker, scratch("cut.gguf"));
	model = open_model(scratch("cut.gguf"));
	CHECK(model != NULL);
	CHECK(split_item(model, "q4", 1, 0, 2, 0).bytes == UINT64_MAX);
	CHECK_HOLDS(error.message, "blocks of 32");
	CHECK_EQ(split_item(model, "q4", 1, 0, 2, ONEHOP_TP_SPLIT).split_extent, 64);
	CHECK_EQ(split_item(model, "q4", 1, 1, 2, ONEHOP_TP_SPLIT).split_begin, 64);
	CHECK_EQ(split_item(model, "q4", 1, 2, 3, 0).bytes, 2 * 18);
	onehop_model_close(model);
}

TEST(a_dimension_that_the_tensor_does_not_have_is_refused_with_its_shape)
{
	struct onehop_model *model = open_llama();
	CHECK(model != NULL);
	CHECK(split_item(model, "embed.weight", 2, 0, 2, 0).bytes == UINT64_MAX);
	CHECK_EQ(error.status, ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "\"embed.weight\"");
	CHECK_HOLDS(error.message, "[8, 6]");
	CHECK(split_item(model, "scale", 0, 0, 2, 0).bytes == UINT64_MAX);
	CHECK_HOLDS(error.message, "[]");
	CHECK(split_item(model, "scale", INT64_MAX, 0, 2, 0).bytes == UINT64_MAX);
	onehop_model_close(model);
}

TEST(a_rank_outside_the_group_is_refused)
{
	struct onehop_model *model = open_llama();
	CHECK(model != NULL);
	CHECK(split_item(model, "embed.weight", 0, 2, 2, 0).bytes == UINT64_MAX);
	CHECK_EQ(error.status, ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "rank 2");
	CHECK(split_item(model, "embed.weight", 0, 0, 0, 0).bytes == UINT64_MAX);
	CHECK(split_item(model, "embed.weight", 0, 0, 2, 2).bytes == UINT64_MAX);
	onehop_model_close(model);
}

TEST(options_that_were_not_initialised_are_refused)
{
	struct onehop_model *model = open_llama();
	struct onehop_select_options options = {0};
	char names[512];
	CHECK(model != NULL);
	select_names(model, &options, names);
	CHECK_STR(names, "INVALID_ARGUMENT");
	CHECK_HOLDS(error.message, "onehop_select_options_init");
	onehop_model_close(model);
}

TEST(the_first_rule_that_matches_counts_and_the_files_come_after_the_callers)
{
	struct onehop_model *model = open_llama();
	struct onehop_tp_rule rules[2] = {{"layers.1.q.weight", -1}, {"embed.*", 1}};
	struct onehop_select_options options;
	struct onehop_selection *selection;
	static const int32_t want[8] = {1, 0, 1, -1, 1, -1, -1, -1};
	CHECK(model != NULL);
	write_text(scratch("plan.json"), "{\"embed.weight\": 0, \"layers.*.q.*\": 0, \"*.o.*\": 1,"
					 "\"layers.*\": 0, \"nothing.like.it\": 3}");
	onehop_select_options_init(&options);
	options.tp_size = 2;
	options.tp_rules = rules;
	options.tp_rule_count = 2;
	options.tp_plan_path = scratch("plan.json");
	CHECK_EQ(onehop_model_select(model, &options, &selection, &error), ONEHOP_OK);
	for (uint64_t i = 0; i < 8; i++) {
		struct onehop_item item = {.size = sizeof item};
		CHECK_EQ(onehop_selection_at(selection, i, &item), ONEHOP_OK);
		CHECK_EQ(item.split_dim, want[i]);
	}
	CHECK_EQ(onehop_selection_at(selection, 8, &(struct onehop_item){.size = 8}),
		 ONEHOP_OUT_OF_RANGE);
	onehop_selection_destroy(selection);
	onehop_model_close(model);
}

TEST(a_plan_file_that_is_missing_or_malformed_is_refused)
{
	struct onehop_model *model = open_llama();
	struct onehop_select_options options;
	char names[512];
	CHECK(model != NULL);
	onehop_select_options_init(&options);
	options.tp_plan_path = scratch("no-plan.json");
	select_names(model, &options, names);
	CHECK_STR(names, "NOT_FOUND");
	write_text(scratch("bad-plan.json"), "{\"embed\": \"first\"}");
	options.tp_plan_path = scratch("bad-plan.json");
	select_names(model, &options, names);
	CHECK_STR(names, "MALFORMED");
	CHECK_HOLDS(error.message, "bad-plan.json");
	onehop_model_close(model);
}

/* Reads an item's bytes as its extent says, row by row. */
static void
read_by_hand(struct onehop_selection *selection, uint64_t index, char *out)
{
	struct onehop_extent extent = oh_selection_extent(selection, index);
	struct onehop_file_info info = {.size = sizeof info};
	int fd;
	onehop_file_query(extent.file, &info);
	fd = open(info.path, O_RDONLY | O_CLOEXEC);
	for (uint64_t row = 0; row < extent.rows; row++, out += extent.row_bytes)
		need(pread(fd, out, extent.row_bytes,
			   (off_t)(extent.offset + row * extent.row_stride)) ==
			     (ssize_t)extent.row_bytes,
		     "pread");
	close(fd);
}

/* Joins every rank's part. Returns 0 if the plan is refused, which all ranks must agree on. */
static int
join_all_ranks(struct random_model *random_model, struct random_plan *plan)
{
	int refusals = 0;
	for (uint32_t rank = 0; rank < plan->options.tp_size; rank++) {
		struct onehop_selection *selection;
		struct onehop_selection_info info = {.size = sizeof info};
		plan->options.tp_rank = rank;
		if (onehop_model_select(random_model->model, &plan->options, &selection, &error)) {
			refusals++;
			continue;
		}
		onehop_selection_query(selection, &info);
		for (uint64_t i = 0; i < info.count; i++) {
			struct onehop_item item = {.size = sizeof item};
			char *bytes;
			onehop_selection_at(selection, i, &item);
			bytes = malloc(item.bytes + 1);
			read_by_hand(selection, i, bytes);
			join_item(random_model, &item, bytes);
			plan->is_split[item.tensor] = item.split_dim >= 0;
			free(bytes);
		}
		onehop_selection_destroy(selection);
	}
	if (refusals && refusals != (int)plan->options.tp_size)
		test_fail(__FILE__, __LINE__, "%d of %u ranks refuse", refusals,
			  plan->options.tp_size);
	return !refusals;
}

TEST(random_plans_split_any_dimension_and_join_to_the_whole)
{
	struct random random = random_begin();
	int joined = 0, refusals = 0;
	for (int i = 0; i < 60 && !test_failed; i++) {
		struct random_model random_model;
		random_model_make(&random_model, &random, "random");
		for (int j = 0; j < 12 && !test_failed; j++) {
			struct random_plan plan;
			random_model_clear(&random_model);
			random_plan_make(&plan, &random_model, &random);
			/* Uneven plans are mostly refused, so that fewer tensors are left. */
			while (!join_all_ranks(&random_model, &plan) && !test_failed) {
				refusals++;
				plan.options.tp_rule_count--;
				random_model_clear(&random_model);
			}
			check_joined(&random_model, &plan);
			joined++;
		}
		random_model_free(&random_model);
	}
	printf("# %d plans joined, %d refused\n", joined, refusals);
	CHECK(test_failed || refusals > 0);
}

/* Four items of the llama, one of them split, one by one and in one call. */
static struct onehop_selection *
select_split(struct onehop_model *model)
{
	struct onehop_tp_rule rule = {"embed.weight", 0};
	struct onehop_select_options options;
	struct onehop_selection *selection = NULL;
	onehop_select_options_init(&options);
	options.tp_rank = 1;
	options.tp_size = 2;
	options.tp_rules = &rule;
	options.tp_rule_count = 1;
	onehop_model_select(model, &options, &selection, &error);
	return selection;
}

TEST(reading_many_items_gives_what_reading_each_gives)
{
	struct onehop_model *model = open_llama();
	struct onehop_selection *selection = select_split(model);
	struct onehop_item items[7] = {{.size = sizeof *items}};
	struct onehop_tensor tensors[7] = {{.size = sizeof *tensors}};
	CHECK(selection != NULL);
	CHECK_EQ(onehop_selection_read(selection, 0, 7, items, tensors), ONEHOP_OK);
	CHECK_EQ(items[0].split_dim, 0);
	CHECK_EQ(items[0].split_begin, 4);
	for (uint64_t i = 0; i < 7; i++) {
		struct onehop_item item = {.size = sizeof item};
		struct onehop_tensor tensor = {.size = sizeof tensor};
		onehop_selection_at(selection, i, &item);
		onehop_model_at(model, item.tensor, &tensor);
		CHECK(memcmp(&item, &items[i], sizeof item) == 0);
		CHECK(memcmp(&tensor, &tensors[i], sizeof tensor) == 0);
	}
	memset(items, 0, sizeof items);
	items[0].size = sizeof *items;
	CHECK_EQ(onehop_selection_read(selection, 6, 2, items, NULL), ONEHOP_OK);
	CHECK_EQ(items[1].tensor, 7);
	CHECK_EQ(items[2].size, 0);
	onehop_selection_destroy(selection);
	onehop_model_close(model);
}

TEST(the_first_elements_size_is_the_distance_of_all)
{
	struct onehop_model *model = open_llama();
	struct onehop_selection *selection = select_split(model);
	/* An older caller's item, which ends behind the tensor's index, and a newer one's tensor. */
	struct { uint32_t size; int32_t split_dim; uint64_t tensor; } items[3] = {{.size = 16}};
	struct { struct onehop_tensor tensor; uint64_t more; } tensors[3] = {{{.size = 0}, 0}};
	tensors[0].tensor.size = sizeof *tensors;
	tensors[1].more = 5;
	CHECK(selection != NULL);
	CHECK_EQ(onehop_selection_read(selection, 1, 3, (struct onehop_item *)items,
				       &tensors[0].tensor),
		 ONEHOP_OK);
	for (uint32_t i = 0; i < 3; i++) {
		CHECK_EQ(items[i].size, 16);
		CHECK_EQ(items[i].tensor, i + 1);
		CHECK_EQ(tensors[i].tensor.size, sizeof *tensors);
	}
	CHECK_STR(tensors[2].tensor.name, "layers.1.q.weight");
	CHECK_EQ(tensors[1].more, 5);
	onehop_selection_destroy(selection);
	onehop_model_close(model);
}

TEST(reading_past_the_end_or_without_a_size_writes_nothing)
{
	struct onehop_model *model = open_llama();
	struct onehop_selection *selection = select_split(model);
	struct onehop_item items[2] = {{.size = sizeof *items, .bytes = 77}};
	struct onehop_tensor tensors[2] = {{.size = 0}};
	CHECK(selection != NULL);
	CHECK_EQ(onehop_selection_read(selection, 7, 2, items, NULL), ONEHOP_OUT_OF_RANGE);
	CHECK_EQ(onehop_selection_read(selection, 9, 0, items, NULL), ONEHOP_OUT_OF_RANGE);
	CHECK_EQ(onehop_selection_read(selection, 1, UINT64_MAX, items, NULL), ONEHOP_OUT_OF_RANGE);
	CHECK_EQ(onehop_selection_read(selection, 0, 2, items, tensors), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_selection_read(NULL, 0, 1, items, NULL), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(items[0].bytes, 77);
	CHECK_EQ(onehop_selection_read(selection, 8, 0, NULL, NULL), ONEHOP_OK);
	CHECK_EQ(onehop_selection_read(selection, 8, 0, items, tensors), ONEHOP_OK);
	onehop_selection_destroy(selection);
	onehop_model_close(model);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
