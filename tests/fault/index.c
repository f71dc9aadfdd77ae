/* Making and verifying a shard's index, with each system call and each allocation failing in turn:
 * the n-th for n = 0, 1, 2, ... until nothing is struck.
 *
 * What failed says so in one line with a status of its cause. The index is then what it was before:
 * not there, or the old one, and nothing else is left in the folder or open. What did not fail has
 * made the right index, or found it right.
 */
#include "fault/fault.h"

#include "fault/strike.h"
#include "format/tar_file.h"

#include <onehop/dataset.h>

#define SHARD "s/a.tar"
#define SIDE  "s/a.tar.onehop"

static int has_trailer;
static char folder[1024], shard[1024], side[1024];
static uint8_t *archive, *right;
static size_t archive_bytes, right_bytes;
static const char old[] = "an index of long ago";

enum work { MAKE, REMAKE, LEAVE, VERIFY, WORKS };
static const char *const work_names[] = {"make", "make again", "leave", "verify"};

static uint8_t *
read_all(const char *path, size_t *bytes)
{
	FILE *file = fopen(path, "rb");
	if (!file)
		return NULL;
	uint8_t *data = malloc(2 << 20);
	*bytes = fread(data, 1, 2 << 20, file);
	fclose(file);
	return data;
}

static int
side_is(const void *bytes, size_t count)
{
	size_t have = 0;
	uint8_t *data = read_all(side, &have);
	int same = data && bytes && have == count && memcmp(data, bytes, count) == 0;
	if (!bytes)
		same = !data;
	free(data);
	return same;
}

static int
count_names(const char *path)
{
	int count = 0;
	DIR *names = opendir(path);
	while (names && readdir(names))
		count++;
	if (names)
		closedir(names);
	return count;
}

/* Every kind of thing that the walk reads: records, a window of members, payloads, .npy headers. */
static void
write_shard(void)
{
	static const char npy[] = "\x93NUMPY\1\0\x38\0{'descr': '|u1', 'fortran_order': False, "
				  "'shape': (3,)}\n123";
	struct tar_file tar = {0};
	tar_record(&tar, 'g', pax("comment", "x"));
	for (int i = 0; i < 3; i++) {
		char name[32];
		snprintf(name, sizeof name, "%d.cam.jpg", i);
		tar_record(&tar, 'L', name);
		tar_member(&tar, name, 300000);
		snprintf(name, sizeof name, "%d.npy", i);
		tar_record(&tar, 'x', pax("path", name));
		tar_header(&tar, name, '0', sizeof npy - 1);
		tar_body(&tar, npy, sizeof npy - 1);
	}
	tar_end(&tar);
	write_file(shard, tar.bytes, tar.count);
	tar_clear(&tar);
}

/* One that we wrote, with its trailer. */
static void
pack_shard(void)
{
	struct onehop_error error;
	struct onehop_shard_writer *writer;
	static uint8_t noise[100000];
	need(!onehop_shard_writer_create(shard, NULL, &writer, &error), error.message);
	for (int i = 0; i < 5; i++) {
		char key[16];
		struct onehop_sample_source sample;
		struct onehop_part_source part;
		onehop_sample_source_init(&sample);
		onehop_part_source_init(&part);
		snprintf(key, sizeof key, "%d", i);
		sample.key = key;
		sample.timestamp_ns = i;
		part.field = "raw";
		part.data = noise;
		part.bytes = sizeof noise;
		need(!onehop_shard_writer_add(writer, &sample, &part, 1, &error), error.message);
	}
	need(!onehop_shard_writer_finish(writer, NULL, &error), error.message);
	onehop_shard_writer_destroy(writer);
}

/* Takes the shard that was written, and finds its right index. */
static void
take_shard(void)
{
	struct onehop_error error;
	free(archive);
	free(right);
	archive = read_all(shard, &archive_bytes);
	need(!onehop_shard_index(shard, 1, 1, NULL, &error), error.message);
	right = read_all(side, &right_bytes);
}

static void
begin(enum work work)
{
	unlink(side);
	if (work == REMAKE)
		write_file(side, old, sizeof old);
	if (work == LEAVE || work == VERIFY)
		write_file(side, right, right_bytes);
}

static onehop_status
run(enum work work, struct onehop_error *error)
{
	struct onehop_shard_info info = {.size = sizeof info};
	if (work == VERIFY)
		return onehop_shard_verify(shard, &info, error);
	return onehop_shard_index(shard, 1, work == REMAKE, &info, error);
}

/* NULL, or what is wrong. */
static const char *
judge(enum work work, onehop_status status, const struct onehop_error *error, int names,
      int may_leave)
{
	int now = count_names(folder);
	if (now != names && !may_leave && !(work == MAKE && now == names + 1 && !status))
		return "something is left in the folder";
	if (!status)
		return side_is(right, right_bytes) ? NULL : "it went well, and the index is wrong";
	const char *wrong = wrong_error(status, error, 0);
	if (wrong)
		return wrong;
	/* A look at an index that fails is not that there is none. */
	if (work == MAKE)
		return side_is(NULL, 0) ? NULL : "it failed, and there is an index";
	if (work == REMAKE)
		return side_is(old, sizeof old) ? NULL : "it failed, and the old index is gone";
	return side_is(right, right_bytes) ? NULL : "it failed, and the index is another";
}

static long
strike_once(const struct strike *s, int work, long number, long *failed)
{
	struct onehop_error error = {0};
	begin(work);
	int names = count_names(folder), open = count_descriptors();
	strike_arm(s, number);
	onehop_status status = run(work, &error);
	struct fault_struck what = strike_disarm(s);
	int may_leave = !s->allocations && (what.call == FAULT_unlink || s->fault.onwards);
	const char *wrong = judge(work, status, &error, names, may_leave);
	if (!wrong && count_descriptors() != open)
		wrong = "descriptors are left open";
	if (wrong)
		test_fail(__FILE__, __LINE__, "%s, %s, number %ld: %s (%s: %s)", work_names[work],
			  s->name, number, wrong, onehop_status_name(status), error.message);
	*failed += status != ONEHOP_OK;
	scratch_clear("s");
	scratch(SHARD);
	write_file(shard, archive, archive_bytes);
	return what.count;
}

static void
strike_each(const struct strike *s, long least)
{
	for (int work = MAKE; work < WORKS && !test_failed; work++) {
		/* With a trailer nothing is made where nothing is. */
		if (work == MAKE && has_trailer)
			continue;
		strike_all(s, work, work_names[work], least, strike_once);
	}
}

TEST(every_system_call_fails)
{
	static const int codes[] = {EIO, ENOSPC, EACCES, ENOMEM};
	for (size_t i = 0; i < sizeof codes / sizeof *codes && !test_failed; i++) {
		struct strike s = {"a call fails",
				   {FAULT_ANY, FAULT_FAILS, 0, 0, codes[i], 0},
				   0,
				   0};
		strike_each(&s, 5);
	}
}

TEST(from_any_system_call_on_all_fail)
{
	static const struct strike s = {"all calls fail",
					{FAULT_ANY, FAULT_FAILS, 0, 1, EIO, 0},
					0,
					0};
	strike_each(&s, 5);
}

TEST(reads_and_writes_fall_short)
{
	static const struct strike one = {"a byte", {FAULT_ANY, FAULT_ONE_BYTE, 0, 0, 0, 0}, 0, 0};
	static const struct strike half = {"half", {FAULT_ANY, FAULT_HALF, 0, 1, 0, 0}, 0, 0};
	static const struct strike ends = {"the end", {FAULT_ANY, FAULT_ENDS, 0, 0, 0, 0}, 0, 0};
	strike_each(&one, 5);
	strike_each(&half, 5);
	strike_each(&ends, 5);
}

TEST(every_allocation_fails)
{
	static const struct strike one = {"an allocation", {0}, 1, 0};
	static const struct strike all = {"all allocations", {0}, 1, 1};
	strike_each(&one, 3);
	strike_each(&all, 3);
}

TEST(so_they_do_where_there_is_a_trailer)
{
	static const struct strike call = {"a call", {FAULT_ANY, FAULT_FAILS, 0, 0, EIO, 0}, 0, 0};
	static const struct strike byte = {"a byte", {FAULT_ANY, FAULT_ONE_BYTE, 0, 0, 0, 0}, 0, 0};
	static const struct strike ends = {"the end", {FAULT_ANY, FAULT_ENDS, 0, 0, 0, 0}, 0, 0};
	static const struct strike one = {"an allocation", {0}, 1, 0};
	has_trailer = 1;
	scratch_clear("s");
	scratch(SHARD);
	pack_shard();
	take_shard();
	strike_each(&call, 5);
	strike_each(&byte, 5);
	strike_each(&ends, 5);
	strike_each(&one, 3);
}

int
main(int argc, char **argv)
{
	fault_install();
	snprintf(shard, sizeof shard, "%s", scratch(SHARD));
	snprintf(side, sizeof side, "%s", scratch(SIDE));
	snprintf(folder, sizeof folder, "%s", scratch("s"));
	write_shard();
	take_shard();
	return test_main(argc, argv);
}
