/* Parsing of the command line.
 *
 * All options of all commands are rows of one table; a command names those that it takes. Values
 * are checked here for form only: what a device or a runtime option may be is the library's to say.
 * An unknown word is an error that names the nearest one.
 */
#include "request.h"
#include "say.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
	const char *name;
	const char *value; /* NULL: takes none */
	const char *doc;
};

static const struct row rows[OPT_COUNT] = {
	[OPT_DEVICE] = {"device", "cuda:N|host", "where to (cuda:0 if there is one, else host)"},
	[OPT_TENSORS] = {"tensors", "PATTERN",
			 "only tensors whose name matches; *, ?, [set]; again for more"},
	[OPT_TP] = {"tp", "RANK/SIZE", "only this rank's part of a tensor-parallel group"},
	[OPT_TP_PLAN] = {"tp-plan", "FILE",
			 "JSON of {\"pattern\": dimension}: what is split, and where"},
	[OPT_TP_UNEVEN] = {"tp-uneven", "refuse|split",
			   "a dimension that SIZE does not divide (refuse)"},
	[OPT_REPEAT] = {"repeat", "N", "load N times and give minimum, median and maximum"},
	[OPT_PIN] = {"pin", NULL, "pin the files' page cache for the GPU once, before the loads"},
	[OPT_VERIFY] = {"verify", NULL, "compare every byte with an independent read of the file"},
	[OPT_CHECKSUM] = {"checksum", "crc32|sha256",
			  "of each tensor's bytes as they sit on the device"},
	[OPT_METADATA] = {"metadata", NULL, "the file's metadata too"},
	[OPT_SEGMENTS] = {"segments", NULL, "each segment, not only their sums"},
	[OPT_BYTES] = {"bytes", "N",
		       "size of the model that is made (12G, or a quarter of the usable memory)"},
	[OPT_TENSOR_BYTES] = {"tensor-bytes", "N", "size of each of its tensors (128M)"},
	[OPT_FRESH] = {"fresh", "N", "fresh processes for the first load (9)"},
	[OPT_DIR] = {"dir", "DIR", "where the model is made ($TMPDIR, else /tmp)"},
	[OPT_KEEP] = {"keep", NULL, "keep the model, and use one that an earlier run kept"},
	[OPT_CONCURRENT] = {"concurrent", NULL,
			    "also two equal loads at once, and 1 MiB begun amid the model"},
	[OPT_TO] = {"to", "DIR", "copy the files there instead, whole or not at all"},
	[OPT_FILE_SUMS] = {"checksum", "crc32|sha256",
			   "of each file in DIR; what was there already is compared too"},
	[OPT_NO_VERIFY] = {"no-verify", NULL, "do not read the copies back to compare them"},
	[OPT_FORCE] = {"force", NULL,
		       "warm more than fits in memory; replace files in DIR that differ"},
	[OPT_NO_CHECKSUMS] = {"no-checksums", NULL, "read headers only: the index has no CRCs then"},
	[OPT_REPLACE] = {"replace", NULL, "make an index anew that is there and fits"},
	[OPT_VERIFY_SHARDS] = {"verify", NULL, "compare each shard with its index, and make none"},
	[OPT_SHUFFLE] = {"shuffle", "LEVEL", "none, shard, block or sample (sample)"},
	[OPT_SEED] = {"seed", "N", "of the shuffle (0)"},
	[OPT_BATCH] = {"batch", "N", "samples of a batch (256)"},
	[OPT_RANK] = {"rank", "RANK/WORLD", "only this rank's part of the order"},
	[OPT_FIELD] = {"field", "NAME", "only this field of the samples; again for more"},
	[OPT_RING] = {"ring", "N", "bytes of all buffers together (768M)"},
	[OPT_EPOCHS] = {"epochs", "N", "how many are timed (3)"},
	[OPT_SECONDS] = {"seconds", "N", "as many epochs as that takes, instead"},
	[OPT_VERIFY_SAMPLES] = {"verify", NULL, "check each payload's CRC in the timed epochs too"},
	[OPT_JSON] = {"json", NULL, "print one JSON object"},
	[OPT_QUIET] = {"quiet", NULL, "no progress bar and no table"},
	[OPT_OPTION] = {"option", "NAME=VALUE",
			"a runtime option, see onehop options; again for more"},
	[OPT_HELP] = {"help", NULL, "this text"},
};

static size_t
smallest(size_t a, size_t b, size_t c)
{
	size_t least = a < b ? a : b;
	return least < c ? least : c;
}

/* Edits (insert, delete, replace) from a to b; words longer than the row count as far away. */
static size_t
distance(const char *a, const char *b)
{
	size_t row[64], columns = strlen(b);
	if (columns >= sizeof row / sizeof row[0])
		return SIZE_MAX;
	for (size_t j = 0; j <= columns; j++)
		row[j] = j;
	for (size_t i = 0; a[i]; i++) {
		size_t corner = row[0];
		row[0] = i + 1;
		for (size_t j = 0; j < columns; j++) {
			size_t above = row[j + 1];
			row[j + 1] = smallest(above + 1, row[j] + 1, corner + (a[i] != b[j]));
			corner = above;
		}
	}
	return row[columns];
}

const char *
nearest(const char *word, const char *const *names, int count)
{
	const char *best = NULL;
	size_t least = 1 + strlen(word) / 2;
	for (int i = 0; i < count; i++) {
		size_t edits = distance(word, names[i]);
		if (edits < least || (edits == least && !best)) {
			least = edits;
			best = names[i];
		}
	}
	return best;
}

static int
unknown_option(const struct usage *usage, const char *word)
{
	const char *names[OPT_COUNT], *near;
	char remedy[96], shown[SHOWN];
	for (int i = 0; i < usage->option_count; i++)
		names[i] = rows[usage->options[i]].name;
	near = nearest(word + strspn(word, "-"), names, usage->option_count);
	if (near)
		snprintf(remedy, sizeof remedy, "did you mean --%s?", near);
	else
		snprintf(remedy, sizeof remedy, "see onehop %s --help", usage->name);
	return say_usage(remedy, "unknown option %s", show(shown, word, strlen(word)));
}

static void
help(const struct usage *usage, struct out *out)
{
	out_format(out, "usage: onehop %s%s%s%s\n\n", usage->name,
		   usage->option_count ? " [options]" : "", usage->operands[0] ? " " : "",
		   usage->operands);
	out_text(out, usage->about);
	out_text(out, "\n");
	for (int i = 0; i <= usage->option_count; i++) {
		enum option_id id = i < usage->option_count ? usage->options[i] : OPT_HELP;
		char left[64];
		snprintf(left, sizeof left, "--%s%s%s", rows[id].name, rows[id].value ? " " : "",
			 rows[id].value ? rows[id].value : "");
		out_format(out, "  %-24s %s\n", left, rows[id].doc);
	}
	out_text(out, "\nExit status: 0 done; 1 an operation failed; 2 wrong usage; "
		      "3 the data is wrong or unsupported.\n");
}

/* ------------------------------------------------------------------------------------------- */
/* Values */

static int
bad_value(enum option_id id, const char *value, const char *rule)
{
	char shown[SHOWN];
	return say_usage(rule, "--%s cannot be %s", rows[id].name,
			 show(shown, value, strlen(value)));
}

/* A whole number from minimum to maximum, followed by nothing but, if sizes is set, a suffix. */
static int
take_number(enum option_id id, const char *value, int sizes, uint64_t minimum, uint64_t maximum,
	    uint64_t *out)
{
	static const char units[] = "KMGT";
	char *end, rule[96];
	unsigned shift = 0;
	errno = 0;
	unsigned long long number = strtoull(value, &end, 10);
	int wrong = value[0] < '0' || value[0] > '9' || errno;
	const char *unit = *end && sizes ? strchr(units, *end) : NULL;
	if (unit) {
		shift = 10 * (unsigned)(unit - units + 1);
		end += strncmp(end + 1, "iB", 2) == 0 ? 3 : 1;
	}
	wrong |= *end != '\0' || number > UINT64_MAX >> shift;
	number <<= shift;
	if (wrong || number < minimum || number > maximum) {
		snprintf(rule, sizeof rule, "give a number from %llu to %llu%s",
			 (unsigned long long)minimum, (unsigned long long)maximum,
			 sizes ? ", with K, M, G or T if you like" : "");
		return bad_value(id, value, rule);
	}
	*out = number;
	return GO_ON;
}

/* RANK/SIZE. */
static int
take_rank(enum option_id id, const char *value, uint32_t *rank_out, uint32_t *size_out)
{
	char *slash, *end;
	errno = 0;
	unsigned long long rank = strtoull(value, &slash, 10), size = 0;
	int wrong = value[0] < '0' || value[0] > '9' || *slash != '/' || slash[1] < '0' ||
		    slash[1] > '9';
	if (!wrong) {
		size = strtoull(slash + 1, &end, 10);
		wrong = *end != '\0' || errno || size > UINT32_MAX || rank >= size;
	}
	if (wrong)
		return bad_value(id, value, "give RANK/SIZE with RANK from 0 to SIZE - 1, as 0/2");
	*rank_out = (uint32_t)rank;
	*size_out = (uint32_t)size;
	return GO_ON;
}

static int
take_choice(enum option_id id, const char *value, const char *const *names, int count,
	    uint32_t *out)
{
	char rule[96];
	int bytes = snprintf(rule, sizeof rule, "give %s", names[0]);
	for (int i = 1; i < count; i++)
		bytes += snprintf(rule + bytes, sizeof rule - (size_t)bytes, "%s%s",
				  i + 1 < count ? ", " : " or ", names[i]);
	for (int i = 0; i < count; i++)
		if (strcmp(value, names[i]) == 0) {
			*out = (uint32_t)i;
			return GO_ON;
		}
	const char *near = nearest(value, names, count);
	if (near)
		snprintf(rule, sizeof rule, "did you mean %s?", near);
	return bad_value(id, value, rule);
}

static int
take_checksum(struct request *request, const char *value)
{
	static const char *const names[2] = {"crc32", "sha256"};
	uint32_t choice = 0;
	int go = take_choice(OPT_CHECKSUM, value, names, 2, &choice);
	if (go == GO_ON)
		request->checksum = choice == 0 ? CHECKSUM_CRC32 : CHECKSUM_SHA256;
	return go;
}

static int
take_option(struct request *request, const char *text)
{
	char name[64];
	struct onehop_error error;
	const char *equals = strchr(text, '=');
	if (!equals || equals == text || (size_t)(equals - text) >= sizeof name)
		return bad_value(OPT_OPTION, text, "give NAME=VALUE, as threads=4");
	memcpy(name, text, (size_t)(equals - text));
	name[equals - text] = '\0';
	if (onehop_runtime_options_set(&request->options, name, equals + 1, &error))
		return say_error(&error);
	request->option_texts[request->option_count++] = text;
	return GO_ON;
}

static int
take(struct request *request, enum option_id id, const char *value)
{
	static const char *const uneven[] = {"refuse", "split"};
	static const char *const levels[] = {"none", "shard", "block", "sample"};
	switch (id) {
	case OPT_DEVICE:
		request->device = value;
		return GO_ON;
	case OPT_TENSORS:
	case OPT_FIELD:
		request->patterns[request->pattern_count++] = value;
		return GO_ON;
	case OPT_TP:
		return take_rank(id, value, &request->tp_rank, &request->tp_size);
	case OPT_TP_PLAN:
		request->tp_plan = value;
		return GO_ON;
	case OPT_TP_UNEVEN:
		return take_choice(id, value, uneven, 2, &request->tp_uneven);
	case OPT_REPEAT:
		return take_number(id, value, 0, 1, 10000, &request->repeat);
	case OPT_FRESH:
		return take_number(id, value, 0, 1, 1000, &request->fresh);
	case OPT_BYTES:
		return take_number(id, value, 1, 1024, UINT64_C(1) << 44, &request->bytes);
	case OPT_TENSOR_BYTES:
		return take_number(id, value, 1, 1024, UINT64_C(1) << 40, &request->tensor_bytes);
	case OPT_DIR:
		request->dir = value;
		return GO_ON;
	case OPT_TO:
		request->to = value;
		return GO_ON;
	case OPT_CHECKSUM:
	case OPT_FILE_SUMS:
		return take_checksum(request, value);
	case OPT_SHUFFLE:
		return take_choice(id, value, levels, 4, &request->shuffle);
	case OPT_RANK:
		return take_rank(id, value, &request->rank, &request->world);
	case OPT_SEED:
		return take_number(id, value, 0, 0, UINT64_MAX, &request->seed);
	case OPT_BATCH:
		return take_number(id, value, 0, 1, 1u << 24, &request->batch);
	case OPT_RING:
		return take_number(id, value, 1, 4096, UINT64_C(1) << 44, &request->ring);
	case OPT_EPOCHS:
		return take_number(id, value, 0, 1, 1000000, &request->epochs);
	case OPT_SECONDS:
		return take_number(id, value, 0, 1, 1000000, &request->seconds);
	case OPT_OPTION:
		return take_option(request, value);
	default:
		return GO_ON; /* a flag: request->given says it all */
	}
}

/* ------------------------------------------------------------------------------------------- */

/* The row of the option that word (without dashes, up to '=') names, or OPT_COUNT. */
static enum option_id
find(const struct usage *usage, const char *name, size_t bytes)
{
	for (int i = 0; i < usage->option_count; i++) {
		const char *known = rows[usage->options[i]].name;
		if (strlen(known) == bytes && memcmp(known, name, bytes) == 0)
			return usage->options[i];
	}
	return bytes == 4 && memcmp(name, "help", 4) == 0 ? OPT_HELP : OPT_COUNT;
}

/* One "--name", "--name=value" or "--name value" at argv[*at], which moves past it. */
static int
parse_option(struct request *request, const struct usage *usage, int argc, char **argv, int *at)
{
	const char *word = argv[*at], *value = strchr(word, '=');
	size_t bytes = value ? (size_t)(value - word) : strlen(word);
	enum option_id id = bytes > 2 ? find(usage, word + 2, bytes - 2) : OPT_COUNT;
	if (strcmp(word, "-h") == 0)
		id = OPT_HELP;
	if (id == OPT_COUNT || (word[1] != '-' && id != OPT_HELP))
		return unknown_option(usage, word);
	if (value && !rows[id].value)
		return say_usage("leave it away", "--%s takes no value", rows[id].name);
	if (!value && rows[id].value && ++*at == argc)
		return say_usage("see --help", "--%s needs a value: %s", rows[id].name,
				 rows[id].value);
	request->given |= UINT64_C(1) << id;
	if (!rows[id].value)
		return GO_ON;
	return take(request, id, value ? value + 1 : argv[*at]);
}

static int
parse_word(struct request *request, const struct usage *usage, const char *word)
{
	char shown[SHOWN];
	if (request->word_count == usage->words_max)
		return say_usage("see --help", "onehop %s takes no further argument: %s",
				 usage->name, show(shown, word, strlen(word)));
	request->words[request->word_count++] = word;
	return GO_ON;
}

/* What no single option can tell. */
static int
check_together(const struct request *request, const struct usage *usage)
{
	if (request->word_count < usage->words_min)
		return say_usage("see --help", "onehop %s needs %s", usage->name, usage->operands);
	if (given(request, OPT_TP) != given(request, OPT_TP_PLAN))
		return say_usage("give both", "--tp and --tp-plan belong together");
	if (given(request, OPT_TP_UNEVEN) && !given(request, OPT_TP))
		return say_usage("give --tp and --tp-plan", "--tp-uneven needs --tp");
	if (given(request, OPT_EPOCHS) && given(request, OPT_SECONDS))
		return say_usage("give one of them", "--epochs and --seconds exclude each other");
	return GO_ON;
}

static int
parse_all(struct request *request, const struct usage *usage, int argc, char **argv)
{
	int go = GO_ON, only_words = 0;
	for (int i = 0; i < argc && go == GO_ON; i++) {
		if (!only_words && strcmp(argv[i], "--") == 0)
			only_words = 1;
		else if (!only_words && argv[i][0] == '-' && argv[i][1])
			go = parse_option(request, usage, argc, argv, &i);
		else
			go = parse_word(request, usage, argv[i]);
		if (given(request, OPT_HELP))
			return GO_ON;
	}
	return go == GO_ON ? check_together(request, usage) : go;
}

int
request_parse(struct request *request, const struct usage *usage, struct out *out, int argc,
	      char **argv)
{
	memset(request, 0, sizeof *request);
	request->tp_size = 1;
	request->repeat = 1;
	request->shuffle = ONEHOP_SHUFFLE_SAMPLE;
	request->world = 1;
	request->batch = 256;
	request->epochs = 3;
	onehop_runtime_options_init(&request->options);
	request->words = calloc((size_t)argc + 1, sizeof *request->words);
	request->patterns = calloc((size_t)argc + 1, sizeof *request->patterns);
	request->option_texts = calloc((size_t)argc + 1, sizeof *request->option_texts);
	if (!request->words || !request->patterns || !request->option_texts) {
		request_drop(request);
		say("no memory for the command line", NULL);
		return EXIT_FAILED;
	}
	int go = parse_all(request, usage, argc, argv);
	if (go == GO_ON && given(request, OPT_HELP)) {
		help(usage, out);
		go = EXIT_DONE;
	}
	if (go != GO_ON)
		request_drop(request);
	return go;
}

void
request_drop(struct request *request)
{
	free(request->words);
	free(request->patterns);
	free(request->option_texts);
}
