/* base: messages, names, UTF-8, options. */
#include "base/arith.h"
#include "base/error.h"
#include "base/option.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "harness.h"

#include <errno.h>
#include <unistd.h>

TEST(a_status_has_a_name_a_text_and_an_exception)
{
	CHECK_STR(onehop_status_name(ONEHOP_NO_DEVICE_MEMORY), "NO_DEVICE_MEMORY");
	CHECK_STR(onehop_status_text(ONEHOP_OK), "success");
	CHECK_STR(onehop_status_exception(ONEHOP_NOT_FOUND), "FileNotFoundError");
	CHECK_STR(onehop_status_name(12345), "UNKNOWN");
}

TEST(a_message_that_does_not_fit_ends_in_dots_at_a_character)
{
	struct onehop_error error;
	char text[1200];
	for (size_t i = 0; i + 2 < sizeof text; i += 2)
		memcpy(text + i, "\xc3\xa9", 3);
	oh_fail(&error, ONEHOP_IO, "x%s", text);
	size_t length = strlen(error.message);
	CHECK(length < sizeof error.message);
	CHECK_STR(error.message + length - 3, "...");
	for (size_t at = 0, step; at < length; at += step) {
		step = oh_utf8_length((unsigned char *)error.message + at, length - at);
		CHECK(step > 0);
	}
}

TEST(an_errno_becomes_the_status_that_says_what_to_do)
{
	struct onehop_error error;
	CHECK_EQ(oh_fail_errno(&error, ENOENT, "%s: cannot open it", "f"), ONEHOP_NOT_FOUND);
	CHECK_STR(error.message, "f: cannot open it: No such file or directory");
	CHECK_EQ(error.os_errno, ENOENT);
	CHECK_EQ(oh_fail_errno(NULL, EACCES, "x"), ONEHOP_ACCESS);
	CHECK_EQ(oh_fail_errno(NULL, EIO, "x"), ONEHOP_IO);
	CHECK_EQ(oh_fail_errno(NULL, ENOMEM, "x"), ONEHOP_NO_MEMORY);
}

TEST(a_shown_name_is_one_short_printable_line)
{
	char shown[OH_SHOWN], name[3000];
	struct { const char *name; size_t bytes; const char *want; } cases[] = {
		{"plain.weight", 12, "\"plain.weight\""},
		{"", 0, "\"\""},
		{"a\nb\0c", 5, "\"a\\x0ab\\x00c\""},
		{"q\"\\", 3, "\"q\\\"\\\\\""},
		{"\xff", 1, "\"\\xff\""},
		{"\xc2\x9b" "31m", 5, "\"\\x9b31m\""},
		{"caf\xc3\xa9", 5, "\"caf\xc3\xa9\""},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		CHECK_STR(oh_show(shown, cases[i].name, cases[i].bytes), cases[i].want);
	for (size_t length = 0; length < sizeof name; length++) {
		memset(name, length % 3 ? '\n' : 'n', sizeof name);
		oh_show(shown, name, length);
		CHECK(strlen(shown) < OH_SHOWN);
	}
	CHECK(strstr(shown, "..."));
}

TEST(utf8_refuses_what_rfc_3629_refuses)
{
	struct { const char *text; size_t want; } cases[] = {
		{"a", 1}, {"\xc3\xa9", 2}, {"\xe2\x82\xac", 3}, {"\xf0\x9f\x98\x80", 4},
		{"\x80", 0}, {"\xc0\xaf", 0}, {"\xc1\x81", 0}, {"\xe0\x80\x80", 0},
		{"\xed\xa0\x80", 0}, {"\xf0\x80\x80\x80", 0}, {"\xf4\x90\x80\x80", 0},
		{"\xf5\x80\x80\x80", 0}, {"\xc3", 0}, {"\xe2\x82", 0}, {"\xe2\x28\xa1", 0},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		CHECK_EQ(oh_utf8_length((const unsigned char *)cases[i].text, strlen(cases[i].text)),
			 cases[i].want);
	CHECK_EQ(oh_utf8_length((const unsigned char *)"", 0), 0);
}

TEST(arithmetic_that_does_not_fit_is_refused_and_leaves_the_output)
{
	uint64_t out = 7;
	CHECK_EQ(oh_add(UINT64_MAX, 1, &out), 1);
	CHECK_EQ(oh_mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &out), 1);
	CHECK_EQ(oh_align_up(UINT64_MAX - 5, 16, &out), 1);
	CHECK_EQ(out, 7);
	CHECK_EQ(oh_align_up(17, 16, &out), 0);
	CHECK_EQ(out, 32);
}

static void
clear_environment(void)
{
	unsetenv("ONEHOP_CONFIG");
	for (uint32_t i = 0; i < oh_option_count; i++) {
		char name[64] = "ONEHOP_";
		for (size_t j = 0; oh_option_rows[i].name[j]; j++) {
			char c = oh_option_rows[i].name[j];
			name[7 + j] = c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
			name[8 + j] = '\0';
		}
		unsetenv(name);
	}
	unsetenv("ONEHOP_THRAEDS");
}

TEST(every_default_is_inside_its_range_and_reads_back_from_its_text)
{
	for (uint32_t i = 0; i < oh_option_count; i++) {
		const struct oh_option_row *row = &oh_option_rows[i];
		struct onehop_runtime_options options;
		struct onehop_error error;
		char text[OH_OPTION_TEXT];
		CHECK(row->fallback == ONEHOP_AUTO ? row->can_be_auto
						   : row->fallback >= row->min && row->fallback <= row->max);
		oh_option_show(row, row->fallback, text);
		onehop_runtime_options_init(&options);
		CHECK_EQ(oh_option_get(&options, row) == ONEHOP_UNSET, 1);
		CHECK_EQ(onehop_runtime_options_set(&options, row->name, text, &error), ONEHOP_OK);
		CHECK(oh_option_get(&options, row) == row->fallback);
	}
}

static enum oh_option_origin origins[32];

TEST(an_option_comes_from_the_caller_then_the_environment_then_the_file_then_the_table)
{
	struct onehop_runtime_options caller, got;
	char path[] = "/tmp/onehop-config-XXXXXX";
	int fd = mkstemp(path);
	static const char text[] = "# a comment\n\nthreads = 3\nring_bytes=32M # more\n slice_bytes = 64KiB \n";
	CHECK(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1);
	close(fd);
	clear_environment();
	setenv("ONEHOP_CONFIG", path, 1);
	setenv("ONEHOP_RING_BYTES", "16MiB", 1);
	setenv("ONEHOP_SLICE_BYTES", "32k", 1);
	onehop_runtime_options_init(&caller);
	caller.slice_bytes = 4096;
	onehop_status status = oh_options_resolve(&caller, &got, origins, NULL);
	unlink(path);
	clear_environment();
	CHECK_EQ(status, ONEHOP_OK);
	CHECK_EQ(got.threads, 3);
	CHECK_EQ(got.ring_bytes, 16 << 20);
	CHECK_EQ(got.slice_bytes, 4096);
	CHECK(got.block_bytes == ONEHOP_AUTO);
	CHECK_EQ(origins[0], OH_ORIGIN_FILE);
	CHECK_EQ(origins[2], OH_ORIGIN_ENVIRONMENT);
	CHECK_EQ(origins[4], OH_ORIGIN_CALLER);
	CHECK_EQ(origins[3], OH_ORIGIN_DEFAULT);
}

static ssize_t
no_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	errno = EIO;
	return -1;
}

TEST(a_config_file_that_cannot_be_read_is_named)
{
	struct onehop_runtime_options got;
	struct onehop_error error;
	struct oh_sys real = oh_sys;
	clear_environment();
	setenv("ONEHOP_CONFIG", "/proc/self/status", 1);
	oh_sys.pread = no_pread;
	onehop_status status = oh_options_resolve(NULL, &got, origins, &error);
	oh_sys = real;
	CHECK_EQ(status, ONEHOP_IO);
	CHECK_HOLDS(error.message, "/proc/self/status: cannot read the config file");
	setenv("ONEHOP_CONFIG", "/nowhere/at/all", 1);
	status = oh_options_resolve(NULL, &got, origins, &error);
	clear_environment();
	CHECK_EQ(status, ONEHOP_NOT_FOUND);
	CHECK_HOLDS(error.remedy, "ONEHOP_CONFIG");
}

/* Lines lie across the pieces in which the file is read. */
TEST(a_config_file_of_many_lines_is_read_whole)
{
	struct onehop_runtime_options got;
	char path[] = "/tmp/onehop-config-XXXXXX";
	int fd = mkstemp(path);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
	CHECK(file != NULL);
	for (int i = 0; i < 500; i++)
		fprintf(file, "# line %d\nthreads = %d\n", i, i + 1);
	fclose(file);
	clear_environment();
	setenv("ONEHOP_CONFIG", path, 1);
	onehop_status status = oh_options_resolve(NULL, &got, origins, NULL);
	unlink(path);
	clear_environment();
	CHECK_EQ(status, ONEHOP_OK);
	CHECK_EQ(got.threads, 500);
}

TEST(an_unknown_variable_names_the_nearest_option)
{
	struct onehop_runtime_options got;
	struct onehop_error error;
	clear_environment();
	setenv("ONEHOP_THRAEDS", "3", 1);
	onehop_status status = oh_options_resolve(NULL, &got, origins, &error);
	clear_environment();
	CHECK_EQ(status, ONEHOP_UNKNOWN_OPTION);
	CHECK_HOLDS(error.message, "ONEHOP_THRAEDS");
	CHECK_HOLDS(error.remedy, "ONEHOP_THREADS");
}

TEST(a_value_that_is_none_is_refused_with_the_range)
{
	static const char *const bad[][2] = {
		{"threads", "0"}, {"threads", "-1"}, {"threads", "4K"}, {"threads", ""},
		{"threads", "1025"}, {"threads", "99999999999999999999"}, {"ring_bytes", "64Q"},
		{"ring_bytes", "64 MiB"}, {"ring_bytes", "18446744073709551615K"},
		{"ring_bytes", "MiB"}, {"route", "fastest"}, {"pinned_limit_bytes", "auto"},
		{"block_bytes", "0x1000"},
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct onehop_runtime_options options;
		struct onehop_error error;
		onehop_runtime_options_init(&options);
		CHECK_EQ(onehop_runtime_options_set(&options, bad[i][0], bad[i][1], &error),
			 ONEHOP_OUT_OF_RANGE);
		CHECK_HOLDS(error.message, bad[i][0]);
		CHECK(error.remedy[0]);
	}
}

TEST(an_older_callers_shorter_struct_is_taken)
{
	struct onehop_runtime_options caller, got;
	clear_environment();
	onehop_runtime_options_init(&caller);
	caller.threads = 5;
	caller.route = 77; /* behind the end that this caller knows */
	caller.size = offsetof(struct onehop_runtime_options, ranks_per_node);
	CHECK_EQ(oh_options_resolve(&caller, &got, origins, NULL), ONEHOP_OK);
	CHECK_EQ(got.threads, 5);
	CHECK(got.route == ONEHOP_AUTO);
}

static int reads;
static ssize_t
stuttering_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	(void)fd;
	if (reads++ == 1) {
		errno = EINTR;
		return -1;
	}
	if (offset >= 10)
		return 0;
	memset(buf, 'x', bytes < 3 ? bytes : 3);
	return bytes < 3 ? (ssize_t)bytes : 3;
}

TEST(a_full_read_goes_on_after_short_reads_and_interrupts_and_ends_at_the_end)
{
	char buf[64];
	int failed;
	struct oh_sys saved = oh_sys;
	oh_sys.pread = stuttering_pread;
	reads = 0;
	ssize_t got = oh_pread_full(0, buf, sizeof buf, 0, &failed);
	oh_sys = saved;
	CHECK_EQ(got, 12);
	CHECK_EQ(failed, 0);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
