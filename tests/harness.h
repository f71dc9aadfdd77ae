/* A tiny test harness that speaks TAP. A test file:
 *
 *   #include "harness.h"
 *   TEST(a_short_read_is_read_again) { CHECK(1 + 1 == 2); CHECK_EQ(f(), 3); }
 *   int main(int argc, char **argv) { return test_main(argc, argv); }
 *
 * Arguments choose tests whose name holds one of them. A failed CHECK ends its test (return), so use
 * it in test functions and in helpers that return void only. SKIP("why") needs a reason.
 */
#ifndef OH_TESTS_HARNESS_H
#define OH_TESTS_HARNESS_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test {
	const char *name;
	void (*run)(void);
	struct test *next;
};

static struct test *test_first, **test_last = &test_first;
static int test_failed;
static char test_skip_reason[256];

#define TEST(id)                                                                                   \
	static void test_##id(void);                                                               \
	static struct test test_entry_##id = {#id, test_##id, NULL};                               \
	__attribute__((constructor)) static void test_add_##id(void)                               \
	{                                                                                          \
		*test_last = &test_entry_##id;                                                     \
		test_last = &test_entry_##id.next;                                                 \
	}                                                                                          \
	static void test_##id(void)

__attribute__((format(printf, 3, 4), unused)) static void
test_fail(const char *file, int line, const char *format, ...)
{
	va_list args;
	test_failed = 1;
	printf("# %s:%d: ", file, line);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			test_fail(__FILE__, __LINE__, "not true: %s", #condition);                 \
			return;                                                                    \
		}                                                                                  \
	} while (0)

#define CHECK_EQ(got, want)                                                                        \
	do {                                                                                       \
		long long test_got = (long long)(got), test_want = (long long)(want);              \
		if (test_got != test_want) {                                                       \
			test_fail(__FILE__, __LINE__, "%s is %lld, should be %lld", #got, test_got, \
				  test_want);                                                      \
			return;                                                                    \
		}                                                                                  \
	} while (0)

#define CHECK_STR(got, want)                                                                       \
	do {                                                                                       \
		const char *test_got = (got), *test_want = (want);                                 \
		if (strcmp(test_got, test_want) != 0) {                                            \
			test_fail(__FILE__, __LINE__, "%s is \"%s\", should be \"%s\"", #got,      \
				  test_got, test_want);                                            \
			return;                                                                    \
		}                                                                                  \
	} while (0)

/* A call of the library's that gave ONEHOP_OK; what it said else is in `error`, a struct
 * onehop_error where the test is. */
#define CHECK_OK(call)                                                                             \
	do {                                                                                       \
		onehop_status test_status = (call);                                                \
		if (test_status != ONEHOP_OK) {                                                    \
			test_fail(__FILE__, __LINE__, "%s: %s: %s", #call,                         \
				  onehop_status_name(test_status), error.message);                 \
			return;                                                                    \
		}                                                                                  \
	} while (0)

#define CHECK_HOLDS(text, part)                                                                    \
	do {                                                                                       \
		const char *test_text = (text), *test_part = (part);                               \
		if (!strstr(test_text, test_part)) {                                               \
			test_fail(__FILE__, __LINE__, "\"%s\" does not hold \"%s\"", test_text,    \
				  test_part);                                                      \
			return;                                                                    \
		}                                                                                  \
	} while (0)

#define SKIP(...)                                                                                  \
	do {                                                                                       \
		snprintf(test_skip_reason, sizeof test_skip_reason, __VA_ARGS__);                  \
		return;                                                                            \
	} while (0)

static int
test_wanted(const char *name, int argc, char **argv)
{
	if (argc < 2)
		return 1;
	for (int i = 1; i < argc; i++)
		if (strstr(name, argv[i]))
			return 1;
	return 0;
}

static int
test_main(int argc, char **argv)
{
	int number = 0, bad = 0;
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (struct test *t = test_first; t; t = t->next) {
		if (!test_wanted(t->name, argc, argv))
			continue;
		test_failed = 0;
		test_skip_reason[0] = '\0';
		t->run();
		number++;
		bad += test_failed;
		printf("%s %d - %s", test_failed ? "not ok" : "ok", number, t->name);
		if (test_skip_reason[0] && !test_failed)
			printf(" # SKIP %s", test_skip_reason);
		printf("\n");
	}
	printf("1..%d\n", number);
	return bad ? 1 : 0;
}

#endif
