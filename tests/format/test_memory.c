/* Memory while a header is parsed: at most 3 times its bytes, the text included, whatever it holds;
 * and nothing is left behind, on success or failure, with any allocation failing.
 *
 * The allocator's calls are wrapped by the linker. A realloc counts the old and the new block at
 * once, as if it always copied.
 */
#include "format/gguf.h"
#include "format/index.h"
#include "format/safetensors.h"
#include "harness.h"

#include <malloc.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void __real_free(void *block);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void __wrap_free(void *block);

static size_t in_use, peak;
static long fail_in = -1; /* so many allocations more succeed; negative: all */

static int
fails(void)
{
	return fail_in >= 0 && fail_in-- == 0;
}

static void
count_block(void *block)
{
	in_use += block ? malloc_usable_size(block) : 0;
	peak = in_use > peak ? in_use : peak;
}

void *
__wrap_malloc(size_t bytes)
{
	void *block = fails() ? NULL : __real_malloc(bytes);
	count_block(block);
	return block;
}

void *
__wrap_calloc(size_t count, size_t bytes)
{
	void *block = fails() ? NULL : __real_calloc(count, bytes);
	count_block(block);
	return block;
}

void *
__wrap_realloc(void *old, size_t bytes)
{
	size_t was = old ? malloc_usable_size(old) : 0;
	void *block = fails() ? NULL : __real_realloc(old, bytes);
	if (!block)
		return NULL;
	count_block(block); /* both */
	in_use -= was;
	return block;
}

void
__wrap_free(void *block)
{
	in_use -= block ? malloc_usable_size(block) : 0;
	__real_free(block);
}

/* A header as it is built, in memory that is not counted. */
static struct {
	char *bytes;
	size_t size, capacity;
} text;

static void
clear(void)
{
	text.size = 0;
}

__attribute__((format(printf, 1, 2))) static void
add(const char *format, ...)
{
	if (text.capacity - text.size < 512) {
		text.capacity = text.capacity ? 2 * text.capacity : 1 << 16;
		text.bytes = __real_realloc(text.bytes, text.capacity);
	}
	va_list args;
	va_start(args, format);
	text.size += (size_t)vsnprintf(text.bytes + text.size, 512, format, args);
	va_end(args);
}

/* A short name of its own for each number, of bytes that need no escape. */
static const char *
short_name(char out[8], unsigned number)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01234567"
				      "89!#$%&'()*+,-./:;<=>?@[]^_`{|}~ ";
	size_t base = sizeof letters - 1, to = 0;
	for (; number; number = (unsigned)((number - 1) / base))
		out[to++] = letters[(number - 1) % base];
	out[to] = '\0';
	return out;
}

static struct onehop_error error;

/* Parses text as a header that data of so many bytes follow. */
static onehop_status
parse(uint64_t data)
{
	struct oh_table table = {0};
	uint8_t *copy;
	in_use = peak = 0;
	copy = __wrap_malloc(text.size);
	if (!copy)
		return ONEHOP_NO_MEMORY;
	memcpy(copy, text.bytes, text.size);
	onehop_status status =
	    oh_safetensors_parse("m", copy, text.size, 8 + text.size + data, &table, &error);
	oh_table_free(&table);
	return status;
}

/* Headers of each kind, of about so many bytes. Return the bytes of data. */
static uint64_t
shortest_entries(size_t bytes)
{
	char name[8];
	clear();
	add("{");
	for (unsigned i = 0; text.size < bytes; i++)
		add("%s\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
		    i ? "," : "", short_name(name, i));
	add("}");
	return 0;
}

static uint64_t
entries_back_to_front(size_t bytes)
{
	char name[8];
	unsigned count = (unsigned)(bytes / 64);
	clear();
	add("{");
	for (unsigned i = count; i-- > 0;)
		add("%s\"%s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[%u,%u]}",
		    i + 1 < count ? "," : "", short_name(name, i), i, i + 1);
	add("}");
	return count;
}

static uint64_t
one_deep_shape(size_t bytes)
{
	clear();
	add("{\"\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1");
	while (text.size < bytes)
		add(",1");
	add("]}}");
	return 1;
}

static uint64_t
one_shape_of_large_numbers(size_t bytes)
{
	clear();
	add("{\"\":{\"dtype\":\"U8\",\"data_offsets\":[0,0],\"shape\":[0");
	while (text.size < bytes)
		add(",18446744073709551615");
	add("]}}");
	return 0;
}

static uint64_t
metadata_of_empty_strings(size_t bytes)
{
	clear();
	add("{\"__metadata__\":{\"\":\"\"");
	while (text.size < bytes)
		add(",\"\":\"\"");
	add("}}");
	return 0;
}

static uint64_t
metadata_of_short_keys(size_t bytes)
{
	char name[8];
	clear();
	add("{\"__metadata__\":{\"\":\"\"");
	for (unsigned i = 1; text.size < bytes; i++)
		add(",\"%s\":\"\"", short_name(name, i));
	add("}}");
	return 0;
}

static uint64_t
half_metadata_half_entries(size_t bytes)
{
	char name[8];
	metadata_of_short_keys(bytes / 2);
	text.size--;
	for (unsigned i = 0; text.size < bytes; i++)
		add(",\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
		    short_name(name, i));
	add("}");
	return 0;
}

static uint64_t
one_long_name(size_t bytes)
{
	clear();
	add("{\"");
	while (text.size < bytes)
		add("\\u20ac");
	add("\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
	return 0;
}

static uint64_t
spaces(size_t bytes)
{
	clear();
	add("{");
	while (text.size < bytes)
		add("                                ");
	add("}");
	return 0;
}

static uint64_t (*const headers[])(size_t bytes) = {
    shortest_entries,
    entries_back_to_front,
    one_deep_shape,
    one_shape_of_large_numbers,
    metadata_of_empty_strings,
    metadata_of_short_keys,
    half_metadata_half_entries,
    one_long_name,
    spaces,
};
enum { HEADERS = sizeof headers / sizeof *headers };

TEST(a_good_header_costs_at_most_three_times_its_bytes)
{
	static const size_t sizes[] = {2000, 50000, 1000000, 5000000};
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		for (size_t h = 0; h < HEADERS; h++) {
			uint64_t data = headers[h](sizes[s]);
			onehop_status status = parse(data);
			if (status || peak > 3 * text.size || in_use)
				test_fail(
				    __FILE__, __LINE__,
				    "header %zu of %zu bytes: status %d, peak %zu, left %zu %s", h,
				    text.size, status, peak, in_use, status ? error.message : "");
			if (s == 2)
				printf("# header %zu: peak %.2f times its bytes\n", h,
				       (double)peak / (double)text.size);
		}
	}
}

TEST(a_bad_header_costs_no_more)
{
	static const char *const tails[] = {"", ",", "x", "\"", "{\"\":"};
	static const size_t size = 300000;
	for (size_t h = 0; h < HEADERS; h++) {
		for (size_t t = 0; t < sizeof tails / sizeof *tails; t++) {
			uint64_t data = headers[h](size);
			text.size--;
			add("%s", tails[t]);
			CHECK_EQ(parse(data), ONEHOP_MALFORMED);
			CHECK(peak <= 3 * text.size);
			CHECK_EQ(in_use, 0);
		}
		CHECK_EQ(parse(headers[h](size) + 7), ONEHOP_MALFORMED); /* trailing bytes */
		CHECK(peak <= 3 * text.size);
		CHECK_EQ(in_use, 0);
	}
}

TEST(duplicates_cost_no_more)
{
	clear();
	add("{\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}");
	while (text.size < 1000000)
		add(",\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}");
	add("}");
	CHECK_EQ(parse(1), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "duplicate name");
	CHECK(peak <= 3 * text.size);
	CHECK_EQ(in_use, 0);
}

TEST(metadata_that_are_no_strings_cost_no_more)
{
	metadata_of_empty_strings(500000);
	text.size -= 2;
	add(",\"k\":[\"a\",{\"b\":\"c\"}]}}");
	CHECK_EQ(parse(0), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "member \"k\": its value is an array");
	CHECK(peak <= 3 * text.size);
	CHECK_EQ(in_use, 0);
}

TEST(each_allocation_may_fail)
{
	for (size_t h = 0; h < HEADERS; h++) {
		uint64_t data = headers[h](3000);
		onehop_status status = ONEHOP_NO_MEMORY;
		long n;
		for (n = 0; n < 50; n++) {
			fail_in = n;
			status = parse(data);
			CHECK_EQ(in_use, 0);
			if (fail_in >= 0)
				break; /* there were fewer allocations than that */
			/* Only a block that could not be made smaller is no failure. */
			CHECK(status == ONEHOP_NO_MEMORY || status == ONEHOP_OK);
		}
		fail_in = -1;
		CHECK_EQ(status, ONEHOP_OK);
		CHECK(n > 2);
	}
}

static void
le(uint64_t value, size_t bytes)
{
	for (; bytes > 0; bytes--, value >>= 8)
		add("%c", (int)(value & 0xFF));
}

/* A GGUF file of so many keys and infos, each as short as can be. */
static void
gguf(unsigned keys, unsigned infos)
{
	char name[8];
	clear();
	add("GGUF");
	le(3, 4);
	le(infos, 8);
	le(keys, 8);
	for (unsigned i = 0; i < keys; i++) {
		short_name(name, i + 1);
		le(strlen(name), 8);
		add("%s", name);
		le(0, 4);
		le(1, 1);
	}
	for (unsigned i = 0; i < infos; i++) {
		short_name(name, i);
		le(strlen(name), 8);
		add("%s", name);
		le(0, 4);
		le(24, 4);
		le(32 * (infos - i - 1), 8);
	}
	while (text.size % 32)
		le(0, 1);
}

static onehop_status
parse_gguf(uint64_t data)
{
	struct oh_table table = {0};
	uint64_t need;
	uint8_t *copy;
	in_use = peak = 0;
	copy = __wrap_malloc(text.size);
	if (!copy)
		return ONEHOP_NO_MEMORY;
	memcpy(copy, text.bytes, text.size);
	onehop_status status =
	    oh_gguf_parse("m", copy, text.size, text.size + data, &table, &need, &error);
	oh_table_free(&table);
	return status;
}

TEST(a_gguf_header_costs_at_most_three_times_its_bytes)
{
	static const unsigned counts[][2] = {{0, 20000}, {20000, 0}, {10000, 10000}, {5, 5}};
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
		gguf(counts[i][0], counts[i][1]);
		CHECK_EQ(parse_gguf(32 * counts[i][1]), ONEHOP_OK);
		CHECK(peak <= 3 * text.size);
		CHECK_EQ(in_use, 0);
	}
}

TEST(each_allocation_of_a_gguf_may_fail)
{
	onehop_status status = ONEHOP_NO_MEMORY;
	long n;
	gguf(30, 30);
	for (n = 0; n < 50; n++) {
		fail_in = n;
		status = parse_gguf(32 * 30);
		CHECK_EQ(in_use, 0);
		if (fail_in >= 0)
			break;
		CHECK(status == ONEHOP_NO_MEMORY || status == ONEHOP_OK);
	}
	fail_in = -1;
	CHECK_EQ(status, ONEHOP_OK);
	CHECK(n > 4);
}

/* The index's map of as many tensors and files as fit. */
static onehop_status
parse_index(int as_rules)
{
	struct oh_index index = {0};
	struct oh_rules rules = {0};
	uint8_t *copy;
	onehop_status status;
	in_use = peak = 0;
	copy = __wrap_malloc(text.size);
	if (!copy)
		return ONEHOP_NO_MEMORY;
	memcpy(copy, text.bytes, text.size);
	if (as_rules)
		status = oh_rules_parse("m", copy, text.size, &rules, &error);
	else
		status = oh_index_parse("m", copy, text.size, &index, &error);
	oh_index_free(&index);
	oh_rules_free(&rules);
	return status;
}

static void
index_text(int as_rules)
{
	char name[8];
	clear();
	add("%s{\"\":%s", as_rules ? "" : "{\"weight_map\":", as_rules ? "0" : "\".safetensors\"");
	for (unsigned i = 1; i < 20000; i++) {
		short_name(name, i);
		if (as_rules)
			add(",\"%s\":%u", name, i % 3);
		else
			add(",\"%s\":\"%u.safetensors\"", name, i);
	}
	add("%s", as_rules ? "}" : "}}");
}

TEST(an_index_costs_at_most_three_times_its_bytes)
{
	index_text(0);
	CHECK_EQ(parse_index(0), ONEHOP_OK);
	CHECK(peak <= 3 * text.size);
	CHECK_EQ(in_use, 0);
}

TEST(each_allocation_of_an_index_and_of_rules_may_fail)
{
	for (int as_rules = 0; as_rules < 2; as_rules++) {
		onehop_status status = ONEHOP_NO_MEMORY;
		long n;
		index_text(as_rules);
		for (n = 0; n < 50; n++) {
			fail_in = n;
			status = parse_index(as_rules);
			CHECK_EQ(in_use, 0);
			if (fail_in >= 0)
				break;
			CHECK(status == ONEHOP_NO_MEMORY || status == ONEHOP_OK);
		}
		fail_in = -1;
		CHECK_EQ(status, ONEHOP_OK);
		CHECK(n > 3);
	}
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
