/* The table of names, and the guess at the nearest one against a plain edit distance. */
#include "files.h"

#include "model/lookup.h"

#define NAMES 200
#define LONGEST_NAME 24

static char names[NAMES][LONGEST_NAME + 1];

static const char *
name_at(const void *owner, uint64_t index, uint64_t *bytes)
{
	(void)owner;
	*bytes = strlen(names[index]);
	return names[index];
}

/* Few letters, so that names are near each other. */
static void
random_name(struct random *random, char out[LONGEST_NAME + 1])
{
	uint64_t bytes = 1 + random_below(random, LONGEST_NAME);
	for (uint64_t i = 0; i < bytes; i++)
		out[i] = "ab."[random_below(random, 3)];
	out[bytes] = '\0';
}

static uint32_t
least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t
plain_distance(const char *a, const char *b)
{
	uint32_t table[LONGEST_NAME + 2][LONGEST_NAME + 2];
	uint32_t m = (uint32_t)strlen(a), n = (uint32_t)strlen(b);
	for (uint32_t i = 0; i <= m; i++)
		for (uint32_t j = 0; j <= n; j++) {
			if (!i || !j)
				table[i][j] = i + j;
			else
				table[i][j] = least(least(table[i - 1][j], table[i][j - 1]) + 1,
						    table[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
		}
	return table[m][n];
}

TEST(names_are_found_and_those_that_are_there_already_are_told)
{
	struct random random = random_begin();
	struct onehop_error error;
	struct oh_lookup lookup;
	CHECK_EQ(oh_lookup_create(&lookup, NAMES, NULL, name_at, &error), ONEHOP_OK);
	for (uint64_t i = 0; i < NAMES; i++) {
		uint64_t first = 0, added;
		random_name(&random, names[i]);
		while (strcmp(names[first], names[i]) != 0)
			first++;
		CHECK(oh_lookup_find(&lookup, names[i], strlen(names[i])) ==
		      (first == i ? OH_LOOKUP_NONE : first));
		added = oh_lookup_add(&lookup, i);
		CHECK(added == (first == i ? OH_LOOKUP_NONE : first));
		CHECK_EQ(oh_lookup_find(&lookup, names[i], strlen(names[i])), first);
	}
	CHECK(oh_lookup_find(&lookup, "nobody", 6) == OH_LOOKUP_NONE);
	oh_lookup_destroy(&lookup);
}

static int
is_tail(const char *a, const char *b)
{
	return strlen(a) >= strlen(b) && strcmp(a + strlen(a) - strlen(b), b) == 0;
}

static void
check_nearest(const struct oh_lookup *lookup, const char *name, int *guesses)
{
	uint32_t best = UINT32_MAX, limit = 2 + (uint32_t)strlen(name) / 4;
	uint64_t nearest = oh_lookup_nearest(lookup, NAMES, name, strlen(name));
	for (uint64_t i = 0; i < NAMES; i++) {
		if (is_tail(name, names[i]) || is_tail(names[i], name))
			return; /* another rule's guess */
		best = least(best, plain_distance(name, names[i]));
	}
	if (best >= limit) {
		CHECK(nearest == OH_LOOKUP_NONE);
		return;
	}
	CHECK(nearest < NAMES);
	CHECK_EQ(plain_distance(name, names[nearest]), best);
	++*guesses;
}

TEST(the_nearest_name_is_one_of_least_edit_distance)
{
	struct random random = random_begin();
	struct onehop_error error;
	struct oh_lookup lookup;
	int guesses = 0;
	CHECK_EQ(oh_lookup_create(&lookup, NAMES, NULL, name_at, &error), ONEHOP_OK);
	for (int round = 0; round < 20 && !test_failed; round++) {
		for (uint64_t i = 0; i < NAMES; i++) {
			/* Not so short that each is the end of some other. */
			do
				random_name(&random, names[i]);
			while (strlen(names[i]) < 12);
		}
		for (int i = 0; i < 50 && !test_failed; i++) {
			char name[LONGEST_NAME + 1];
			random_name(&random, name);
			if (strlen(name) >= 12)
				check_nearest(&lookup, name, &guesses);
		}
	}
	printf("# %d guesses\n", guesses);
	CHECK(test_failed || guesses > 20);
	oh_lookup_destroy(&lookup);
}

TEST(a_name_with_a_prefix_too_many_or_too_few_is_guessed_by_its_end)
{
	struct onehop_error error;
	struct oh_lookup lookup;
	CHECK_EQ(oh_lookup_create(&lookup, NAMES, NULL, name_at, &error), ONEHOP_OK);
	for (uint64_t i = 0; i < NAMES; i++)
		snprintf(names[i], sizeof names[i], "model.h.%03d.w", (int)i);
	CHECK_EQ(oh_lookup_nearest(&lookup, NAMES, "transformer.model.h.123.w", 25), 123);
	CHECK_EQ(oh_lookup_nearest(&lookup, NAMES, "h.123.w", 7), 123);
	CHECK(oh_lookup_nearest(&lookup, NAMES, "", 0) == OH_LOOKUP_NONE);
	oh_lookup_destroy(&lookup);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
