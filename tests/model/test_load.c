/* Models through the engine onto the device that TEST_DEVICE names, or into host memory. */
#include "random_model.h"

#include "base/sys.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

static const char *
device(void)
{
	const char *given = getenv("TEST_DEVICE");
	return given ? given : "host";
}

/* Reads item's bytes out of the arena; malloc'd. */
static char *
read_item(struct onehop_buffer *arena, const struct onehop_item *item)
{
	char *bytes = malloc(item->bytes + 1);
	if (item->bytes)
		need(onehop_buffer_read(arena, item->arena_offset, bytes, item->bytes, &error) ==
			     ONEHOP_OK,
		     error.message);
	return bytes;
}

/* Loads the selection and checks that each whole item holds the bytes of its name. */
static void
check_loaded(struct onehop_model *model, const struct onehop_select_options *options, uint64_t salt)
{
	struct onehop_selection *selection;
	struct onehop_selection_info info = {.size = sizeof info};
	struct onehop_completion completion = {.size = sizeof completion};
	struct onehop_buffer *arena;
	CHECK_EQ(onehop_model_select(model, options, &selection, &error), ONEHOP_OK);
	CHECK_EQ(onehop_selection_query(selection, &info), ONEHOP_OK);
	if (onehop_model_load(selection, device(), &arena, &completion, &error) != ONEHOP_OK) {
		test_fail(__FILE__, __LINE__, "%s", error.message);
		onehop_selection_destroy(selection);
		return;
	}
	for (uint64_t i = 0; i < info.count; i++) {
		struct onehop_item item = {.size = sizeof item};
		struct onehop_tensor tensor;
		char *got, *want;
		onehop_selection_at(selection, i, &item);
		tensor = tensor_at(model, item.tensor);
		got = read_item(arena, &item);
		want = malloc(tensor.bytes + 1);
		fill(want, tensor.bytes, tensor.name, salt);
		if (memcmp(got, want, tensor.bytes) != 0)
			test_fail(__FILE__, __LINE__, "tensor %s is wrong", tensor.name);
		free(got);
		free(want);
	}
	CHECK_EQ(completion.bytes, info.bytes);
	onehop_buffer_free(arena);
	onehop_selection_destroy(selection);
}

TEST(a_model_loads_whole)
{
	struct maker maker = {.salt = 5};
	struct onehop_model *model;
	st_add(&maker, "odd", "U8", "[3]", 3);
	st_add(&maker, "large", "U8", "[3000001]", 3000001);
	st_add(&maker, "none", "F32", "[0]", 0);
	st_add(&maker, "scalar", "F64", "[]", 8);
	st_add(&maker, "aligned", "F32", "[65536]", 262144);
	st_write(&maker, scratch("whole.safetensors"));
	model = open_model(scratch("whole.safetensors"));
	CHECK(model != NULL);
	check_loaded(model, NULL, 5);
	onehop_model_close(model);
}

/* The second row of a matrix, by an extent of the caller's own. */
TEST(a_models_file_serves_extents_of_the_callers_own)
{
	struct onehop_model *model;
	struct onehop_tensor tensor;
	struct onehop_buffer *buffer = NULL;
	struct onehop_plan *plan = NULL;
	struct onehop_transfer *transfer = NULL;
	struct onehop_extent extent = {.row_bytes = 4, .rows = 1};
	char whole[16], row[4];
	st_one(scratch("rows.safetensors"), "w", 4, 9);
	model = open_model(scratch("rows.safetensors"));
	CHECK(model != NULL);
	tensor = tensor_at(model, 0);
	CHECK(onehop_model_file(model, 0) != NULL);
	CHECK(onehop_model_file(model, 1) == NULL && onehop_model_file(NULL, 0) == NULL);
	CHECK_EQ(onehop_buffer_alloc(runtime(), device(), 4, &buffer, &error), ONEHOP_OK);
	extent.file = onehop_model_file(model, tensor.file);
	extent.offset = tensor.offset + 4;
	extent.buffer = buffer;
	CHECK_EQ(onehop_plan_create(runtime(), &extent, 1, &plan, &error), ONEHOP_OK);
	CHECK_EQ(onehop_transfer_prepare(plan, &transfer, &error), ONEHOP_OK);
	CHECK_EQ(onehop_transfer_start(transfer, NULL, &error), ONEHOP_OK);
	CHECK_EQ(onehop_transfer_wait(transfer, ONEHOP_FOREVER, NULL, &error), ONEHOP_OK);
	CHECK_EQ(onehop_buffer_read(buffer, 0, row, 4, &error), ONEHOP_OK);
	fill(whole, 16, "w", 9);
	CHECK(memcmp(row, whole + 4, 4) == 0);
	onehop_transfer_destroy(transfer);
	onehop_plan_destroy(plan);
	onehop_buffer_free(buffer);
	onehop_model_close(model);
}

/* Maps that may still be made for pinning; then there is no memory for one. */
static int maps_left;

static void *
mmap_until(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	if (fd >= 0 && maps_left-- == 0) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return mmap(at, bytes, prot, flags, fd, offset);
}

TEST(a_pin_that_fails_leaves_pinned_what_was_before_and_nothing_else)
{
	struct onehop_runtime_info info = {.size = sizeof info};
	struct onehop_file_info file = {.size = sizeof file};
	struct onehop_model *model;
	struct oh_sys real = oh_sys;
	if (strcmp(device(), "host") == 0)
		SKIP("nothing is pinned for host memory");
	mkdir(scratch("pins"), 0777);
	st_one(scratch("pins/a.safetensors"), "a", 1000, 1);
	st_one(scratch("pins/b.safetensors"), "b", 2000, 2);
	st_one(scratch("pins/c.safetensors"), "c", 3000, 3);
	model = open_model(scratch("pins"));
	CHECK(model != NULL);
	CHECK_EQ(onehop_file_pin(onehop_model_file(model, 0), device(), &error), ONEHOP_OK);
	oh_sys.mmap = mmap_until;
	maps_left = 1;
	onehop_status status = onehop_model_pin(model, device(), &error);
	oh_sys = real;
	CHECK(status != ONEHOP_OK);
	CHECK_HOLDS(error.message, "c.safetensors");
	CHECK_EQ(onehop_model_file_at(model, 0, &file), ONEHOP_OK);
	CHECK_EQ(onehop_runtime_query(runtime(), &info), ONEHOP_OK);
	CHECK_EQ(info.file_pinned_bytes, file.bytes);
	CHECK_EQ(onehop_model_pin(model, device(), &error), ONEHOP_OK);
	onehop_model_close(model);
	CHECK_EQ(onehop_runtime_query(runtime(), &info), ONEHOP_OK);
	CHECK_EQ(info.file_pinned_bytes, 0);
}

TEST(a_model_without_tensors_and_one_without_bytes_load)
{
	struct maker maker = {0};
	struct onehop_model *model;
	st_write(&maker, scratch("empty.safetensors"));
	model = open_model(scratch("empty.safetensors"));
	CHECK(model != NULL);
	check_loaded(model, NULL, 0);
	onehop_model_close(model);
	st_add(&maker, "a", "F32", "[0]", 0);
	st_add(&maker, "b", "F32", "[2,0]", 0);
	st_write(&maker, scratch("hollow.safetensors"));
	model = open_model(scratch("hollow.safetensors"));
	CHECK(model != NULL);
	check_loaded(model, NULL, 0);
	onehop_model_close(model);
}

TEST(thousands_of_tensors_load)
{
	struct maker maker = {.salt = 9};
	struct onehop_model *model;
	char name[64], shape[32];
	for (int i = 0; i < 4000; i++) {
		int bytes = 1 + i % 700;
		snprintf(name, sizeof name, "experts.%d.weight", i);
		snprintf(shape, sizeof shape, "[%d]", bytes);
		st_add(&maker, name, "U8", shape, (uint64_t)bytes);
	}
	st_write(&maker, scratch("experts.safetensors"));
	model = open_model(scratch("experts.safetensors"));
	CHECK(model != NULL);
	check_loaded(model, NULL, 9);
	onehop_model_close(model);
}

TEST(a_tensor_past_4_gib_loads_alone)
{
	const uint64_t hole = (UINT64_C(4) << 30) + 4099;
	const char *pattern = "after";
	struct onehop_select_options options;
	struct onehop_model *model;
	char header[256], data[4096];
	uint64_t length;
	int fd;
	fd = open(scratch("sparse.safetensors"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	need(fd >= 0, "open");
	length = (uint64_t)snprintf(
		header, sizeof header,
		"{\"hole\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 "],\"data_offsets\":[0,%" PRIu64
		"]},\"after\":{\"dtype\":\"U8\",\"shape\":[4096],\"data_offsets\":[%" PRIu64
		",%" PRIu64 "]}}",
		hole, hole, hole, hole + sizeof data);
	fill(data, sizeof data, "after", 3);
	need(pwrite(fd, &length, 8, 0) == 8, "pwrite");
	need(pwrite(fd, header, length, 8) == (ssize_t)length, "pwrite");
	need(pwrite(fd, data, sizeof data, (off_t)(8 + length + hole)) == sizeof data, "pwrite");
	close(fd);
	model = open_model(scratch("sparse.safetensors"));
	CHECK(model != NULL);
	onehop_select_options_init(&options);
	options.patterns = &pattern;
	options.pattern_count = 1;
	check_loaded(model, &options, 3);
	onehop_model_close(model);
}

/* ---- destinations of the caller's */

static struct onehop_selection *
select_all(struct onehop_model *model)
{
	struct onehop_selection *selection = NULL;
	need(onehop_model_select(model, NULL, &selection, &error) == ONEHOP_OK, error.message);
	return selection;
}

static void
run_plan(struct onehop_plan *plan)
{
	struct onehop_transfer *transfer;
	uint64_t extent, arrivals = 0;
	struct onehop_plan_info info = {.size = sizeof info};
	onehop_status status;
	onehop_plan_query(plan, &info);
	need(onehop_transfer_prepare(plan, &transfer, &error) == ONEHOP_OK, error.message);
	need(onehop_transfer_start(transfer, NULL, &error) == ONEHOP_OK, error.message);
	while ((status = onehop_transfer_next(transfer, ONEHOP_FOREVER, &extent, &error)) ==
	       ONEHOP_OK)
		arrivals++;
	if (status != ONEHOP_END || arrivals != info.extents)
		test_fail(__FILE__, __LINE__, "%s after %" PRIu64 " arrivals",
			  onehop_status_name(status), arrivals);
	onehop_transfer_destroy(transfer);
}

static void
write_three(const char *path)
{
	struct maker maker = {.salt = 4};
	st_add(&maker, "a", "U8", "[1000]", 1000);
	st_add(&maker, "b", "U8", "[70001]", 70001);
	st_add(&maker, "c", "F32", "[9]", 36);
	st_write(&maker, path);
}

TEST(an_arena_may_begin_anywhere_in_a_buffer)
{
	struct onehop_model *model;
	struct onehop_selection *selection;
	struct onehop_selection_info info = {.size = sizeof info};
	struct onehop_buffer *buffer;
	struct onehop_plan *plan;
	write_three(scratch("three.safetensors"));
	model = open_model(scratch("three.safetensors"));
	CHECK(model != NULL);
	selection = select_all(model);
	onehop_selection_query(selection, &info);
	CHECK_EQ(onehop_buffer_alloc(runtime(), device(), info.arena_bytes + 512, &buffer, &error),
		 ONEHOP_OK);
	CHECK_EQ(onehop_model_plan(selection, buffer, 513, &plan, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "does not fit");
	CHECK_EQ(onehop_model_plan(selection, buffer, UINT64_MAX, &plan, &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_model_plan(selection, buffer, 512, &plan, &error), ONEHOP_OK);
	run_plan(plan);
	for (uint64_t i = 0; i < info.count; i++) {
		struct onehop_item item = {.size = sizeof item};
		char *bytes, want[70001];
		onehop_selection_at(selection, i, &item);
		item.arena_offset += 512;
		bytes = read_item(buffer, &item);
		fill(want, item.bytes, tensor_at(model, i).name, 4);
		CHECK(memcmp(bytes, want, item.bytes) == 0);
		free(bytes);
	}
	onehop_plan_destroy(plan);
	onehop_buffer_free(buffer);
	onehop_selection_destroy(selection);
	onehop_model_close(model);
}

TEST(each_item_may_go_to_a_buffer_of_its_own)
{
	struct onehop_model *model;
	struct onehop_selection *selection;
	struct onehop_destination destinations[3] = {{0}};
	struct onehop_plan *plan;
	write_three(scratch("three.safetensors"));
	model = open_model(scratch("three.safetensors"));
	CHECK(model != NULL);
	selection = select_all(model);
	for (uint64_t i = 0; i < 3; i++) {
		destinations[i].offset = 100 * i;
		need(onehop_buffer_alloc(runtime(), device(), 71000, &destinations[i].buffer,
					 &error) == ONEHOP_OK,
		     error.message);
	}
	CHECK_EQ(onehop_model_plan_into(selection, destinations, &plan, &error), ONEHOP_OK);
	run_plan(plan);
	for (uint64_t i = 0; i < 3; i++) {
		struct onehop_item item = {.size = sizeof item};
		char *bytes, want[70001];
		onehop_selection_at(selection, i, &item);
		item.arena_offset = destinations[i].offset;
		bytes = read_item(destinations[i].buffer, &item);
		fill(want, item.bytes, tensor_at(model, i).name, 4);
		CHECK(memcmp(bytes, want, item.bytes) == 0);
		free(bytes);
	}
	onehop_plan_destroy(plan);
	for (uint64_t i = 0; i < 3; i++)
		onehop_buffer_free(destinations[i].buffer);
	destinations[1].buffer = NULL;
	CHECK_EQ(onehop_model_plan_into(selection, destinations, &plan, &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "\"b\"");
	onehop_selection_destroy(selection);
	onehop_model_close(model);
}

TEST(a_file_that_is_cut_after_it_was_opened_fails_and_names_the_tensor_or_file)
{
	struct onehop_model *model;
	struct onehop_selection *selection;
	struct onehop_buffer *arena = NULL;
	write_three(scratch("cut.safetensors"));
	model = open_model(scratch("cut.safetensors"));
	CHECK(model != NULL);
	selection = select_all(model);
	need(truncate(scratch("cut.safetensors"), 2000) == 0, "truncate");
	memset(&error, 0, sizeof error);
	CHECK(onehop_model_load(selection, device(), &arena, NULL, &error) != ONEHOP_OK);
	CHECK(arena == NULL);
	CHECK_HOLDS(error.message, "cut.safetensors");
	onehop_selection_destroy(selection);
	onehop_model_close(model);
}

TEST(a_device_that_is_not_there_is_refused)
{
	struct onehop_model *model;
	struct onehop_selection *selection;
	struct onehop_buffer *arena = NULL;
	write_three(scratch("three.safetensors"));
	model = open_model(scratch("three.safetensors"));
	CHECK(model != NULL);
	selection = select_all(model);
	CHECK(onehop_model_load(selection, "cuda:99", &arena, NULL, &error) != ONEHOP_OK);
	CHECK(arena == NULL);
	CHECK_EQ(onehop_model_load(selection, NULL, &arena, NULL, &error), ONEHOP_INVALID_ARGUMENT);
	onehop_selection_destroy(selection);
	onehop_model_close(model);
}

/* ---- tensor-parallel plans */

/* Returns 0 if this rank's plan is refused. */
static int
join_rank(struct random_model *random_model, struct random_plan *plan)
{
	struct onehop_selection *selection;
	struct onehop_selection_info info = {.size = sizeof info};
	struct onehop_buffer *arena;
	if (onehop_model_select(random_model->model, &plan->options, &selection, &error))
		return 0;
	onehop_selection_query(selection, &info);
	if (onehop_model_load(selection, device(), &arena, NULL, &error) != ONEHOP_OK) {
		test_fail(__FILE__, __LINE__, "%s", error.message);
		onehop_selection_destroy(selection);
		return 0;
	}
	for (uint64_t i = 0; i < info.count; i++) {
		struct onehop_item item = {.size = sizeof item};
		char *bytes;
		onehop_selection_at(selection, i, &item);
		bytes = read_item(arena, &item);
		join_item(random_model, &item, bytes);
		plan->is_split[item.tensor] = item.split_dim >= 0;
		free(bytes);
	}
	onehop_buffer_free(arena);
	onehop_selection_destroy(selection);
	return 1;
}

TEST(random_tensor_parallel_plans_join_to_the_whole_byte_for_byte)
{
	struct random random = random_begin();
	int joined = 0;
	for (int i = 0; i < 12 && !test_failed; i++) {
		struct random_model random_model;
		random_model_make(&random_model, &random, "random");
		for (int j = 0; j < 4 && !test_failed; j++) {
			struct random_plan plan;
			uint32_t rank;
			random_plan_make(&plan, &random_model, &random);
			do {
				random_model_clear(&random_model);
				for (rank = 0; rank < plan.options.tp_size; rank++) {
					plan.options.tp_rank = rank;
					if (!join_rank(&random_model, &plan))
						break;
				}
				/* Refused, as uneven plans mostly are: with a rule less. */
			} while (rank < plan.options.tp_size && !test_failed &&
				 plan.options.tp_rule_count-- > 0);
			check_joined(&random_model, &plan);
			joined++;
		}
		random_model_free(&random_model);
	}
	printf("# %d plans joined on %s\n", joined, device());
}

int
main(int argc, char **argv)
{
	struct onehop_device_info info = {.size = sizeof info};
	need(onehop_device_query(runtime(), device(), &info, &error) == ONEHOP_OK, error.message);
	printf("# %s: %s\n", device(), info.name);
	return test_main(argc, argv);
}
