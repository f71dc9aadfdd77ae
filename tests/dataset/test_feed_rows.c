/* The feed over equal payloads at a stride, on each device (TEST_DEVICE): they are rows of a run
 * where their bytes go through a block of the ring, and land side by side; nowhere else does
 * anything change.
 */
#include "shards.h"

#include "dataset/dataset.h"
#include "dataset/order.h"

#include "base/arith.h"
#include "base/sys.h"

#include <errno.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static const char *device;
static struct onehop_error error;

struct world {
	const struct recipe *recipe;
	const char *folder;
	struct onehop_runtime *runtime;
	struct onehop_dataset *dataset;
	struct onehop_order_options order_options;
	struct onehop_feed_options options;
	struct onehop_order *order;
	struct onehop_feed *feed;
	/* What was seen. */
	uint64_t rows;
	uint64_t followers; /* samples that follow the one in the row before, in one shard */
	uint64_t packed;    /* of those: payloads that follow without a gap */
	uint64_t skipped;
};

/* Through the ring for sure, or not for sure; else it is this machine's affair. */
static int
is_staged(void)
{
	const char *route = getenv("ONEHOP_ROUTE");
	return strcmp(device, "host") != 0 && route && strcmp(route, "buffered") == 0;
}

static int
is_never_staged(void)
{
	const char *cache = getenv("ONEHOP_CACHE");
	return strcmp(device, "host") == 0 || (cache && strcmp(cache, "bypass") == 0);
}

static void
begin(struct world *w, const char *name, const struct recipe *recipe)
{
	*w = (struct world){.recipe = recipe, .folder = make_shards(name, recipe)};
	CHECK_OK(onehop_runtime_create(NULL, &w->runtime, &error));
	CHECK_OK(onehop_dataset_open(w->runtime, &w->folder, 1, &w->dataset, &error));
	onehop_order_options_init(&w->order_options);
	w->order_options.batch = 20;
	w->order_options.lanes = 4;
	w->order_options.block_bytes = 128 << 10;
	w->order_options.window_bytes = MIB;
	w->order_options.shuffle = ONEHOP_SHUFFLE_NONE;
	onehop_feed_options_init(&w->options);
	w->options.device = device;
}

static void
start(struct world *w)
{
	w->rows = w->followers = w->packed = w->skipped = 0;
	CHECK_OK(onehop_order_create(w->dataset, &w->order_options, &w->order, &error));
	CHECK_OK(onehop_feed_create(w->dataset, w->order, &w->options, &w->feed, &error));
}

static void
end_feed(struct world *w)
{
	onehop_feed_destroy(w->feed);
	onehop_order_destroy(w->order);
	w->feed = NULL;
	w->order = NULL;
}

static void
end(struct world *w)
{
	end_feed(w);
	onehop_dataset_close(w->dataset);
	onehop_runtime_destroy(w->runtime);
}

static uint64_t
offset_in_shard(const struct world *w, uint64_t sample, uint32_t field)
{
	const struct oh_shard_part *parts;
	uint64_t number, count;
	const struct oh_dataset_shard *shard =
		oh_dataset_sample(w->dataset, sample, &number, &parts, &count);
	for (uint64_t i = 0; i < count; i++)
		if (shard->fields[parts[i].field] == field)
			return parts[i].offset;
	return UINT64_MAX;
}

/* A group's buffer, read back once. */
static uint8_t *landed;

static void
read_back(const struct onehop_group *group, uint64_t fields)
{
	uint64_t end = 0;
	for (uint64_t cell = 0; cell < fields * group->rows; cell++)
		if (group->bytes[cell] != UINT64_MAX)
			end = oh_max(end, group->offsets[cell] + group->bytes[cell]);
	landed = realloc(landed, end + 1);
	need(landed != NULL, "realloc");
	if (end)
		CHECK_OK(onehop_buffer_read(group->device_buffer, 0, landed, end, &error));
}

static void
check_cell(struct world *w, const struct onehop_group *group, uint64_t index, uint64_t row)
{
	uint32_t field = w->options.field_count ? w->options.fields[index].field : (uint32_t)index;
	uint64_t cell = index * group->rows + row, sample = group->samples[row];
	uint64_t count = payload_bytes(w->recipe, sample, field);
	CHECK_EQ(group->bytes[cell], count);
	if (count == UINT64_MAX)
		return;
	CHECK_EQ(group->offsets[cell] % 64, offset_in_shard(w, sample, field) % 64);
	const uint8_t *bytes = landed + group->offsets[cell];
	for (uint64_t i = 0; i < count; i++)
		CHECK_EQ(bytes[i], payload(sample, field, i));
	if (row && group->samples[row - 1] + 1 == sample && sample % w->recipe->samples) {
		w->followers++;
		w->packed += group->offsets[cell - 1] + count == group->offsets[cell];
	}
}

/* To the end, whatever that is. */
static onehop_status
drain(struct world *w)
{
	struct onehop_group group = {.size = sizeof group};
	uint64_t fields = w->options.field_count ? w->options.field_count : w->recipe->fields;
	onehop_status status;
	while (!(status = onehop_feed_next(w->feed, ONEHOP_FOREVER, &group, &error))) {
		read_back(&group, fields);
		for (uint64_t row = 0; row < group.rows && !test_failed; row++) {
			if (group.samples[row] == UINT64_MAX) {
				w->skipped++;
				continue;
			}
			for (uint64_t i = 0; i < fields && !test_failed; i++)
				check_cell(w, &group, i, row);
		}
		w->rows += group.rows;
		onehop_feed_release(w->feed, group.slot, 0, 0, &error);
	}
	return status;
}

/* Payloads of 4096 on multiples of 4096, so that half of a shard is padding. */
static const struct recipe half = {
	.shards = 3, .samples = 200, .fields = 1, .bytes = {4096}, .align = 4096};
/* Rows of more than one extent. */
static const struct recipe more = {
	.shards = 2, .samples = 2500, .fields = 1, .bytes = {4096}, .align = 4096};

/* All in rows but what comes before a stride is known, and behind each seam. */
static void
check_packing(const struct world *w)
{
	if (is_staged())
		CHECK(w->packed * 10 > w->followers * 8);
	if (is_never_staged())
		CHECK_EQ(w->packed, 0);
}

TEST(equal_payloads_land_side_by_side_where_a_link_is_crossed)
{
	struct world w;
	struct onehop_feed_info info = {.size = sizeof info};
	begin(&w, "more", &more);
	start(&w);
	CHECK_EQ(drain(&w), ONEHOP_END);
	CHECK_EQ(w.rows, 5000);
	CHECK(w.followers > 4900);
	check_packing(&w);
	CHECK_OK(onehop_feed_query(w.feed, &info));
	CHECK_EQ(info.payload_bytes, 5000 * 4096);
	/* Storage is read with what lies between, from where it need not cross the link. */
	CHECK(info.read_bytes > 5000 * 8192 - 100 * 4096);
	end(&w);
}

TEST(every_payload_is_where_it_is_said_to_be_for_any_size_alignment_and_order)
{
	static const struct recipe recipes[] = {
		{.shards = 3, .samples = 97, .fields = 1, .bytes = {4096}, .align = 4096},
		{.shards = 2, .samples = 150, .fields = 1, .bytes = {64}},
		{.shards = 2, .samples = 150, .fields = 1, .bytes = {1000}, .align = 2048},
		{.shards = 2, .samples = 150, .fields = 1, .bytes = {2048}, .trailer = 1},
		{.shards = 2, .samples = 60, .fields = 1, .bytes = {20480}, .align = 32768},
		{.shards = 2, .samples = 90, .fields = 2, .bytes = {4096, 4096}, .align = 4096},
		{.shards = 2, .samples = 90, .fields = 3, .bytes = {6144, 2048, 64}, .skip = 31},
		{.shards = 2, .samples = 90, .fields = 2, .bytes = {0, 512}},
	};
	static const struct onehop_feed_field first[] = {{0, 0}}, last[] = {{1, 0}};
	for (size_t k = 0; k < sizeof recipes / sizeof recipes[0] && !test_failed; k++) {
		struct world w;
		char name[16];
		snprintf(name, sizeof name, "any%zu", k);
		begin(&w, name, &recipes[k]);
		for (uint32_t how = 0; how < 4 * 3 * 2 && !test_failed; how++) {
			uint32_t chosen = how / 8;
			w.order_options.shuffle = how % 4;
			w.order_options.world = how / 4 % 2 ? 3 : 1;
			w.order_options.rank = how / 4 % 2;
			w.options.verify = how % 2;
			w.options.fields = chosen == 1 ? first : last;
			w.options.field_count = chosen && recipes[k].fields > chosen - 1 ? 1 : 0;
			w.options.ring_bytes = how % 3 ? 3 * MIB : 0;
			w.options.gap_bytes = how % 5 ? 32 << 10 : 0;
			start(&w);
			if (test_failed)
				break;
			CHECK_EQ(drain(&w), ONEHOP_END);
			CHECK_EQ(w.rows, w.order->info.rows);
			end_feed(&w);
		}
		if (test_failed)
			printf("# recipe %zu\n", k);
		end(&w);
	}
}

/* Several threads lay out a large group, each its own part. */
TEST(rows_of_a_group_that_several_threads_lay_out_stay_in_place)
{
	static const struct recipe tiny = {
		.shards = 2, .samples = 12000, .fields = 1, .bytes = {64}};
	struct world w;
	begin(&w, "pieces", &tiny);
	w.dataset->cores = 16;
	w.order_options.batch = 20000;
	start(&w);
	CHECK_EQ(drain(&w), ONEHOP_END);
	CHECK(w.rows >= 20000);
	check_packing(&w);
	end(&w);
}

/* A batch that fits only if it is read without what lies between. */
TEST(rows_and_gaps_give_way_where_buffers_are_too_small)
{
	struct world w;
	static const struct recipe quarter = {
		.shards = 3, .samples = 200, .fields = 1, .bytes = {4096}, .align = 16384};
	begin(&w, "least", &quarter);
	w.order_options.batch = 200;
	w.options.groups = 1;
	w.options.ring_bytes = 200 * (4096 + 4096);
	start(&w);
	CHECK_EQ(drain(&w), ONEHOP_END);
	CHECK_EQ(w.rows, 600);
	end(&w);
}

/* ---- damage */

static void
part_of(const struct world *w, uint64_t sample, const char **path, uint64_t *offset)
{
	static struct onehop_part part;
	static struct onehop_shard shard;
	part.size = sizeof part;
	shard.size = sizeof shard;
	CHECK_OK(onehop_dataset_part_at(w->dataset, sample, 0, &part));
	CHECK_OK(onehop_dataset_shard_at(w->dataset, part.shard, &shard));
	*path = shard.path;
	*offset = part.offset;
}

TEST(a_damaged_payload_in_the_middle_of_rows_is_found_by_its_sum)
{
	struct world w;
	const char *path;
	uint64_t offset;
	begin(&w, "damaged", &half);
	part_of(&w, 300, &path, &offset);
	FILE *f = fopen(path, "r+");
	need(f != NULL, "fopen");
	fseek(f, (long)offset + 4095, SEEK_SET);
	int byte = fgetc(f);
	fseek(f, -1, SEEK_CUR);
	fputc(byte ^ 1, f);
	fclose(f);
	onehop_dataset_close(w.dataset);
	CHECK_OK(onehop_dataset_open(w.runtime, &w.folder, 1, &w.dataset, &error));
	w.options.verify = 1;
	start(&w);
	CHECK_EQ(drain(&w), ONEHOP_MISMATCH);
	CHECK_HOLDS(error.message, "0001.tar");
	CHECK_HOLDS(error.message, "s000300");
	end_feed(&w);
	w.options.damage = ONEHOP_DAMAGE_SKIP;
	start(&w);
	CHECK_EQ(drain(&w), ONEHOP_END);
	CHECK_EQ(w.skipped, 1);
	CHECK_EQ(w.rows, 600);
	end(&w);
}

TEST(a_shard_that_was_cut_in_the_middle_of_rows_names_the_sample)
{
	struct world w;
	const char *path;
	uint64_t offset;
	begin(&w, "cut", &half);
	part_of(&w, 333, &path, &offset);
	CHECK_EQ(truncate(path, (off_t)offset + 100), 0);
	start(&w);
	CHECK_EQ(drain(&w), ONEHOP_FILE_CHANGED);
	CHECK_HOLDS(error.message, "0001.tar");
	CHECK_HOLDS(error.message, "s000333");
	end(&w);
}

/* A disk with one bad page. */
static uint64_t bad_offset;
static ssize_t (*real_pread)(int fd, void *buf, size_t bytes, off_t offset);

static ssize_t
pread_of_bad_page(int fd, void *buf, size_t bytes, off_t offset)
{
	if ((uint64_t)offset < bad_offset + 512 && bad_offset < (uint64_t)offset + bytes) {
		errno = EIO;
		return -1;
	}
	return real_pread(fd, buf, bytes, offset);
}

static ssize_t
preadv_of_bad_page(int fd, const struct iovec *pieces, int count, off_t offset)
{
	(void)fd, (void)pieces, (void)count, (void)offset;
	errno = EIO;
	return -1;
}

TEST(a_read_that_fails_in_the_middle_of_rows_names_the_sample)
{
	struct world w;
	const char *path;
	struct oh_sys kept = oh_sys;
	/* With gaps that may be read with them, and without. */
	static const struct recipe recipes[] = {
		{.shards = 1, .samples = 200, .fields = 1, .bytes = {4096}, .align = 4096},
		{.shards = 1, .samples = 200, .fields = 1, .bytes = {4096}, .align = 65536}};
	if (!is_staged() && !is_never_staged())
		SKIP("with few cores the page cache is copied and not read");
	for (int i = 0; i < 2; i++) {
		begin(&w, i ? "unread" : "unread-far", &recipes[i]);
		part_of(&w, 123, &path, &bad_offset);
		real_pread = oh_sys.pread;
		oh_sys.pread = pread_of_bad_page;
		oh_sys.preadv = preadv_of_bad_page;
		start(&w);
		onehop_status status = drain(&w);
		end_feed(&w);
		oh_sys = kept;
		CHECK_EQ(status, ONEHOP_IO);
		CHECK_EQ(error.os_errno, EIO);
		CHECK_HOLDS(error.message, "0000.tar");
		CHECK_HOLDS(error.message, "s000123");
		end(&w);
	}
}

int
main(int argc, char **argv)
{
	device = getenv("TEST_DEVICE");
	if (!device)
		device = "host";
	return test_main(argc, argv);
}
