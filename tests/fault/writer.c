/* Writing a shard, with each system call and each allocation failing in turn: the n-th for n = 0, 1,
 * 2, ... until nothing is struck.
 *
 * What failed says so in one line with a status of its cause, and leaves nothing behind; a shard that
 * was there before is still there, and no index of another beside it. Where all calls fail from one on,
 * nothing can be cleaned up, as if the program had been killed: then a shard that has its name is whole
 * with all its indexes, or the old one, which its new index refuses. And writing it again makes it right.
 */
#include "fault/fault.h"

#include "fault/strike.h"

#include <onehop/onehop.h>

#define FILES 4
static const char *const ends[FILES] = {".tar", ".tar.onehop", ".tar.idx", ".idx"};

struct content {
	uint8_t *bytes;
	size_t count;
};

static char folder[1024], shard[1024], source[1024];
static struct content right[FILES], before[FILES];

enum work { FRESH, REPLACE, WORKS };
static uint32_t sync_option = 1;
static const char *const work_names[] = {"write", "replace"};

static const char *
path_of(int file)
{
	static char paths[FILES][1100];
	snprintf(paths[file], sizeof paths[0], "%s/a%s", folder, ends[file]);
	return paths[file];
}

static struct content
content_of(const char *path)
{
	struct content content = {NULL, 0};
	FILE *file = fopen(path, "rb");
	if (!file)
		return content;
	content.bytes = __real_malloc(8 << 20);
	content.count = fread(content.bytes, 1, 8 << 20, file);
	fclose(file);
	return content;
}

static int
file_is(int file, const struct content *want)
{
	struct content have = content_of(path_of(file));
	int same = have.bytes && have.count == want->count &&
		   memcmp(have.bytes, want->bytes, want->count) == 0;
	free(have.bytes);
	return same;
}

static int
is_there(int file)
{
	return access(path_of(file), F_OK) == 0;
}

/* Files in the folder but the source. */
static int
count_files(void)
{
	int count = -3;
	DIR *names = opendir(folder);
	while (readdir(names))
		count++;
	closedir(names);
	return count;
}

/* Three samples from memory and a file that is larger than a write, one of them an array. */
static onehop_status
add(struct onehop_shard_writer *writer, char letter, struct onehop_error *error)
{
	static const char npy[] = "\x93NUMPY\1\0\x38\0{'descr': '|u1', 'fortran_order': False, "
				  "'shape': (3,)}\n123";
	struct onehop_sample_source sample;
	struct onehop_part_source parts[2];
	char key[8], text[600];
	onehop_status status = ONEHOP_OK;
	memset(text, letter, sizeof text);
	for (int i = 0; i < 3 && !status; i++) {
		onehop_sample_source_init(&sample);
		snprintf(key, sizeof key, "k%d", i);
		sample.key = key;
		sample.episode = "e";
		sample.stream = "s";
		onehop_part_source_init(&parts[0]);
		onehop_part_source_init(&parts[1]);
		parts[0].field = "cam.bin";
		parts[0].path = i == 1 ? source : NULL;
		parts[0].data = text;
		parts[0].bytes = i == 1 ? UINT64_MAX : sizeof text;
		parts[1].field = "x.npy";
		parts[1].data = npy;
		parts[1].bytes = sizeof npy - 1;
		status = onehop_shard_writer_add(writer, &sample, parts, 2, error);
	}
	return status;
}

static onehop_status
write_shard(char letter, struct onehop_error *error)
{
	struct onehop_shard_writer *writer;
	struct onehop_shard_options options;
	onehop_shard_options_init(&options);
	options.align = ONEHOP_ALIGN_MEMBER;
	options.sync = sync_option;
	onehop_status status = onehop_shard_writer_create(shard, &options, &writer, error);
	if (status)
		return status;
	status = add(writer, letter, error);
	if (!status)
		status = onehop_shard_writer_finish(writer, NULL, error);
	onehop_shard_writer_destroy(writer);
	return status;
}

static void
write_source(void)
{
	static uint8_t bytes[(2 << 20) + 77];
	struct random r = random_init(5);
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)random_next(&r);
	write_file(source, bytes, sizeof bytes);
}

static void
begin(enum work work)
{
	struct onehop_error error;
	scratch_clear("s");
	scratch("s/a");
	write_source();
	if (work == REPLACE)
		need(write_shard('o', &error) == ONEHOP_OK, "the old shard");
}

/* A shard that has its name is whole, or the old one; and one index is never taken for the other's. */
static const char *
judge_killed(enum work work)
{
	struct onehop_error error;
	int all = 1;
	for (int i = 0; i < FILES; i++)
		all &= file_is(i, &right[i]);
	if (all || !is_there(0))
		return work == REPLACE && !all ? "the old shard is gone" : NULL;
	if (work == FRESH || !file_is(0, &before[0]))
		return "a shard has its name and is not whole";
	if (file_is(1, &right[1]) && onehop_shard_verify(shard, NULL, &error) == ONEHOP_OK)
		return "the old shard and the new index are taken as one";
	return write_shard('n', &error) || !file_is(0, &right[0]) ? "it cannot be written again" : NULL;
}

/* Nothing of what failed is left; the old shard is, and an index that is not its own is not. */
static const char *
judge_failed(enum work work, int may_leave)
{
	if (work == FRESH)
		return count_files() == 0 || may_leave ? NULL : "something is left in the folder";
	if (!file_is(0, &before[0]))
		return "the old shard is not there any more";
	for (int i = 1; i < FILES; i++)
		if (is_there(i) && !file_is(i, &before[i]) && !may_leave)
			return "an index of what failed is left";
	return count_files() <= FILES || may_leave ? NULL : "something is left in the folder";
}

static const char *
judge(enum work work, onehop_status status, const struct onehop_error *error, int killed,
      int may_leave)
{
	const char *wrong = status ? wrong_error(status, error, 1) : NULL;
	if (wrong)
		return wrong;
	if (killed)
		return judge_killed(work);
	if (status && !strstr(error->message, "has its name"))
		return judge_failed(work, may_leave);
	for (int i = 0; i < FILES; i++)
		if (!file_is(i, &right[i]))
			return "it went well, and a file is wrong";
	return count_files() == FILES || may_leave ? NULL : "something is left in the folder";
}

static long
strike_once(const struct strike *s, int work, long number, long *failed)
{
	struct onehop_error error = {0};
	begin(work);
	int open = count_descriptors();
	strike_arm(s, number);
	onehop_status status = write_shard('n', &error);
	struct fault_struck what = strike_disarm(s);
	const char *wrong = judge(work, status, &error, s->fault.onwards && s->fault.how == FAULT_FAILS,
				  !s->allocations && what.call == FAULT_unlink);
	if (!wrong && count_descriptors() != open)
		wrong = "descriptors are left open";
	if (wrong)
		test_fail(__FILE__, __LINE__, "%s, %s, number %ld (%s): %s (%s: %s)",
			  work_names[work], s->name, number, fault_names[what.call], wrong,
			  onehop_status_name(status), error.message);
	*failed += status != ONEHOP_OK;
	return what.count;
}

static void
strike_each(const struct strike *s, long least)
{
	for (int work = FRESH; work < WORKS && !test_failed; work++)
		strike_all(s, work, work_names[work], least, strike_once);
}

TEST(every_system_call_fails)
{
	static const int codes[] = {EIO, ENOSPC, EACCES, ENOMEM};
	for (size_t i = 0; i < sizeof codes / sizeof *codes && !test_failed; i++) {
		struct strike s = {"a call fails", {FAULT_ANY, FAULT_FAILS, 0, 0, codes[i], 0}, 0, 0};
		strike_each(&s, 30);
	}
}

TEST(a_writer_that_ends_at_any_system_call_leaves_no_shard_that_is_not_whole)
{
	static const struct strike s = {"all calls fail", {FAULT_ANY, FAULT_FAILS, 0, 1, EIO, 0}, 0, 0};
	strike_each(&s, 30);
}

TEST(reads_and_writes_fall_short)
{
	static const struct strike one = {"a byte", {FAULT_ANY, FAULT_ONE_BYTE, 0, 0, 0, 0}, 0, 0};
	static const struct strike half = {"half", {FAULT_ANY, FAULT_HALF, 0, 1, 0, 0}, 0, 0};
	static const struct strike end = {"the end", {FAULT_ANY, FAULT_ENDS, 0, 0, 0, 0}, 0, 0};
	strike_each(&one, 30);
	strike_each(&half, 30);
	strike_each(&end, 30);
}

TEST(every_allocation_fails)
{
	static const struct strike one = {"an allocation", {0}, 1, 0};
	static const struct strike all = {"all allocations", {0}, 1, 1};
	strike_each(&one, 20);
	strike_each(&all, 20);
}

/* How often the call comes in one writing. */
static long
count_calls(enum fault_call call)
{
	struct onehop_error error;
	begin(FRESH);
	fault_arm((struct fault){call, FAULT_HALF, 0, 1, 0, 0}); /* which it does not heed */
	onehop_status status = write_shard('n', &error);
	long count = fault_disarm().count;
	return status ? -1 : count;
}

TEST(four_files_and_their_folder_are_flushed_if_that_was_asked_for)
{
	CHECK_EQ(count_calls(FAULT_fsync), 5);
	sync_option = 0;
	long without = count_calls(FAULT_fsync);
	sync_option = 1;
	CHECK_EQ(without, 0);
}

TEST(a_disk_that_is_full_is_said_to_be)
{
	struct onehop_error error;
	begin(FRESH);
	fault_arm((struct fault){FAULT_pwrite, FAULT_FAILS, 0, 1, ENOSPC, 0});
	onehop_status status = write_shard('n', &error);
	fault_disarm();
	CHECK_EQ(status, ONEHOP_IO);
	CHECK_EQ(error.os_errno, ENOSPC);
	CHECK_HOLDS(error.message, "a.tar.partial: cannot write");
	CHECK_HOLDS(error.remedy, "free room");
	CHECK_EQ(count_files(), 0);
}

/* What both kinds of shard look like when nothing fails. They are of one size. */
static void
note(char letter, struct content *content)
{
	struct onehop_error error;
	begin(FRESH);
	need(write_shard(letter, &error) == ONEHOP_OK, error.message);
	for (int i = 0; i < FILES; i++)
		content[i] = content_of(path_of(i));
}

int
main(int argc, char **argv)
{
	fault_install();
	snprintf(folder, sizeof folder, "%s", scratch("s"));
	snprintf(shard, sizeof shard, "%s", scratch("s/a.tar"));
	snprintf(source, sizeof source, "%s", scratch("s/source"));
	note('o', before);
	note('n', right);
	need(before[0].count == right[0].count, "both are of one size");
	return test_main(argc, argv);
}
