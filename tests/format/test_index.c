/* The index of a sharded model and the rules of a tensor-parallel plan. */
#include "format/index.h"
#include "harness.h"

static struct oh_index index_;
static struct oh_rules rules;
static struct onehop_error error;
static char said[sizeof error.message];

static uint8_t *
copy_of(const void *text, size_t bytes)
{
	uint8_t *copy = malloc(bytes ? bytes : 1);
	memcpy(copy, text, bytes);
	memset(&error, 0, sizeof error);
	return copy;
}

static onehop_status
parse_bytes(const void *text, size_t bytes)
{
	oh_index_free(&index_);
	onehop_status status =
	    oh_index_parse("model.json", copy_of(text, bytes), bytes, &index_, &error);
	snprintf(said, sizeof said, "%s", status ? error.message : "");
	return status;
}

static onehop_status
parse(const char *text)
{
	return parse_bytes(text, strlen(text));
}

/* "tensor>file;..." then "|files" */
static const char *
summary(void)
{
	static char out[4096];
	size_t to = 0;
	const char *text = (const char *)index_.text;
	out[0] = '\0';
	for (uint64_t i = 0; i < index_.count; i++) {
		const struct oh_index_entry *e = &index_.entries[i];
		const struct oh_index_file *f = &index_.files[e->file];
		to += (size_t)sprintf(out + to, "%.*s>%.*s;", (int)e->name_bytes, text + e->name,
				      (int)f->name_bytes, text + f->name);
	}
	to += (size_t)sprintf(out + to, "|%d", (int)index_.file_count);
	return out;
}

#define LOADS(text, want)                                                                          \
	do {                                                                                       \
		parse(text);                                                                       \
		CHECK_STR(said, "");                                                               \
		CHECK_STR(summary(), want);                                                        \
		oh_index_free(&index_);                                                            \
	} while (0)

#define REFUSED(text, part)                                                                        \
	do {                                                                                       \
		CHECK_EQ(parse(text), ONEHOP_MALFORMED);                                           \
		CHECK_HOLDS(said, part);                                                           \
	} while (0)

TEST(each_tensor_has_its_file)
{
	LOADS("{\"metadata\":{\"total_size\":94},\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":"
	      "\"m-2.safetensors\",\"c\":\"m-1.safetensors\"}}",
	      "a>m-1.safetensors;b>m-2.safetensors;c>m-1.safetensors;|2");
	LOADS(" { \"weight_map\" : { \"\" : \".safetensors\" } } ", ">.safetensors;|1");
	LOADS(
	    "{\"weight_map\":{\"caf\\u00e9\\n\":\"\\u0061.safetensors\",\"x\":\"a.safetensors\"}}",
	    "caf\xC3\xA9\n>a.safetensors;x>a.safetensors;|1");
}

TEST(a_map_may_be_empty)
{
	LOADS("{\"weight_map\":{}}", "|0");
}

TEST(what_is_beside_the_map_does_not_matter)
{
	LOADS("{\"metadata\":{\"total_size\":1e12},\"weight_map\":{\"a\":\"a.safetensors\"}}",
	      "a>a.safetensors;|1");
	LOADS("{\"metadata\":null,\"x\":[[]],\"weight_map\":{\"a\":\"a.safetensors\"},\"y\":-1.5}",
	      "a>a.safetensors;|1");
	LOADS("{\"metadata\":{},\"metadata\":3,\"weight_map\":{\"a\":\"a.safetensors\"}}",
	      "a>a.safetensors;|1");
}

TEST(names_that_stay_inside_the_folder_are_taken)
{
	LOADS("{\"weight_map\":{\"a\":\"part one/..a..safetensors\",\"b\":\"./x/y..safetensors\","
	      "\"c\":\"...safetensors\",\"d\":\"a\\\\b.safetensors\"}}",
	      "a>part one/..a..safetensors;b>./x/y..safetensors;c>...safetensors;"
	      "d>a\\b.safetensors;|4");
}

#define MAP(file) "{\"weight_map\":{\"head\":\"" file "\"}}"

TEST(names_that_lead_elsewhere_are_refused)
{
	REFUSED(MAP("../out.safetensors"), "weight_map: tensor \"head\": its file "
					   "\"../out.safetensors\" leads outside the folder");
	REFUSED(MAP("a/../../out.safetensors"), "outside the folder");
	REFUSED(MAP("a/../b.safetensors"), "outside the folder");
	REFUSED(MAP(".."), "outside the folder");
	REFUSED(MAP("a/.."), "outside the folder");
	REFUSED(MAP("\\u002e\\u002e/a.safetensors"), "outside the folder");
	REFUSED(MAP("/etc/a.safetensors"), "is an absolute path, outside the folder");
	REFUSED(MAP("//a.safetensors"), "absolute");
	REFUSED(MAP(""), "its file \"\" is empty");
	REFUSED(MAP("a\\u0000.safetensors"), "holds a NUL byte");
	REFUSED(MAP("a.bin"), "its file \"a.bin\" does not end in .safetensors");
	REFUSED(MAP("a.safetensors.bak"), "does not end in .safetensors");
	REFUSED(MAP("a.SAFETENSORS"), "does not end in .safetensors");
	REFUSED(MAP("safetensors"), "does not end in .safetensors");
	REFUSED(MAP("a.safetensors/"), "does not end in .safetensors");
}

TEST(a_tensor_that_stands_twice_is_refused)
{
	REFUSED("{\"weight_map\":{\"a\":\"1.safetensors\",\"a\":\"2.safetensors\"}}",
		"byte 36: weight_map: duplicate name: tensor \"a\" stands twice");
	REFUSED("{\"weight_map\":{\"a\":\"1.safetensors\",\"\\u0061\":\"1.safetensors\"}}",
		"duplicate name");
}

TEST(a_map_of_another_kind_is_refused)
{
	REFUSED("{\"weight_map\":[\"a\"]}", "weight_map is an array, should be an object");
	REFUSED("{\"weight_map\":null}", "weight_map is null, should be an object");
	REFUSED("{\"weight_map\":\"a.safetensors\"}", "weight_map is a string");
	REFUSED("{\"weight_map\":{\"head\":3}}",
		"weight_map: tensor \"head\": its file is a number, should be a string");
	REFUSED("{\"weight_map\":{\"head\":[\"a.safetensors\"]}}", "its file is an array");
	REFUSED("{\"weight_map\":{\"head\":null}}", "tensor \"head\": its file is null");
	REFUSED("{}", "weight_map is missing");
	REFUSED("{\"metadata\":{\"weight_map\":{}}}", "weight_map is missing");
	REFUSED("{\"weight_map\":{},\"weight_map\":{}}", "duplicate weight_map");
	REFUSED("[]", "the index is an array, should be an object");
	REFUSED("3", "the index is a number");
}

TEST(text_that_is_no_index_is_refused)
{
	REFUSED("", "the file is empty");
	REFUSED("{\"weight_map\":{\"a\":\"a.safetensors\"", "the JSON ends where ',' or '}'");
	REFUSED("{\"weight_map\":{\"a\":\"a.safetensors\"}} x", "'x' after the end of the JSON");
	REFUSED("{\"weight_map\":{\"a\xFF\":\"a.safetensors\"}}", "not UTF-8");
	REFUSED("version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer, not an index");
	REFUSED("<!DOCTYPE html><html>", "a web page (HTML), not an index");
	REFUSED("Not Found", "byte 0: 'N' stands where an object should");
}

TEST(many_tensors_in_many_files_keep_their_order)
{
	enum { COUNT = 5000, FILES = 77 };
	char *text = malloc(COUNT * 64), *to = text;
	to += sprintf(to, "{\"weight_map\":{");
	for (int i = 0; i < COUNT; i++)
		to += sprintf(to, "%s\"t%d\":\"s%d.safetensors\"", i ? "," : "", i, i % FILES);
	to += sprintf(to, "}}");
	onehop_status status = parse_bytes(text, (size_t)(to - text));
	free(text);
	CHECK_EQ(status, ONEHOP_OK);
	CHECK_EQ(index_.count, COUNT);
	CHECK_EQ(index_.file_count, FILES);
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ(index_.entries[i].file, i % FILES);
	oh_index_free(&index_);
}

/* --------------------------------------------------------------------------------------------- */

static onehop_status
parse_rules(const char *text)
{
	oh_rules_free(&rules);
	return oh_rules_parse("plan.json", copy_of(text, strlen(text)), strlen(text), &rules,
			      &error);
}

#define RULES_REFUSED(text, part)                                                                  \
	do {                                                                                       \
		CHECK_EQ(parse_rules(text), ONEHOP_MALFORMED);                                     \
		CHECK_HOLDS(error.message, part);                                                  \
	} while (0)

TEST(rules_keep_their_order)
{
	CHECK_EQ(parse_rules("{\"*.q_proj.weight\":0,\"*.o_proj.*\":1,\"norm*\":null,\"x\":-3}"),
		 ONEHOP_OK);
	CHECK_EQ(rules.count, 4);
	CHECK_EQ(rules.rules[0].dim, 0);
	CHECK_EQ(rules.rules[1].dim, 1);
	CHECK_EQ(rules.rules[2].dim, -1);
	CHECK_EQ(rules.rules[3].dim, -1);
	CHECK_EQ(rules.rules[1].pattern_bytes, 10);
	CHECK(memcmp(rules.text + rules.rules[1].pattern, "*.o_proj.*", 10) == 0);
	CHECK_EQ(parse_rules("{}"), ONEHOP_OK);
	CHECK_EQ(rules.count, 0);
	oh_rules_free(&rules);
}

TEST(many_rules_are_taken)
{
	char text[4096], *to = text;
	*to++ = '{';
	for (int i = 0; i < 200; i++)
		to += sprintf(to, "%s\"p%d\":%d", i ? "," : "", i, i);
	sprintf(to, "}");
	CHECK_EQ(parse_rules(text), ONEHOP_OK);
	CHECK_EQ(rules.count, 200);
	for (int i = 0; i < 200; i++)
		CHECK_EQ(rules.rules[i].dim, i);
	oh_rules_free(&rules);
}

TEST(rules_of_another_kind_are_refused)
{
	RULES_REFUSED("", "the file is empty");
	RULES_REFUSED("[]", "the tensor-parallel plan is an array, should be an object");
	RULES_REFUSED("{\"a\":\"0\"}",
		      "pattern \"a\": its dimension is a string, should be a number");
	RULES_REFUSED("{\"a\":1.5}", "pattern \"a\": its dimension 1.5 is no plain integer");
	RULES_REFUSED("{\"a\":99999999999999999999}", "does not fit 64 bits");
	RULES_REFUSED("{\"a\":true}", "its dimension is true");
	RULES_REFUSED("{\"a\\u0000\":1}", "a pattern holds no NUL byte");
	RULES_REFUSED("{\"a\":0,\"a\":1}", "duplicate pattern \"a\"");
	RULES_REFUSED("{\"a\":0", "the JSON ends");
	RULES_REFUSED("{\"a\":0}}", "after the end of the JSON");
	RULES_REFUSED("{\"a\":nul}", "a word that is not");
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
