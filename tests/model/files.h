/* Model files for tests, written into a scratch folder that is removed when the program ends.
 *
 *   scratch("a/b")         its path; folders on the way are made
 *   struct maker m = {0};  then st_add() or gg_add() for each tensor, and st_write() or gg_write()
 *   fill()                 the bytes that a tensor of that name has in every file of the same salt
 */
#ifndef OH_TESTS_MODEL_FILES_H
#define OH_TESTS_MODEL_FILES_H

#include "harness.h"
#include "random.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

static char scratch_root[256];

static void
need(int condition, const char *what)
{
	if (condition)
		return;
	printf("Bail out! %s: %s\n", what, strerror(errno));
	exit(1);
}

static int
remove_one(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
	(void)st, (void)kind, (void)walk;
	return remove(path);
}

static void
remove_scratch(void)
{
	nftw(scratch_root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of name in the scratch folder: good until eight more were asked for. */
UNUSED static const char *
scratch(const char *name)
{
	static char paths[8][1024];
	static unsigned next;
	char *path = paths[next++ % 8];
	if (!scratch_root[0]) {
		const char *tmp = getenv("TMPDIR");
		snprintf(scratch_root, sizeof scratch_root, "%s/onehop-test-XXXXXX",
			 tmp && *tmp ? tmp : "/tmp");
		need(mkdtemp(scratch_root) != NULL, "mkdtemp");
		atexit(remove_scratch);
	}
	snprintf(path, sizeof paths[0], "%s/%s", scratch_root, name);
	for (char *at = path + strlen(scratch_root) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		need(mkdir(path, 0777) == 0 || errno == EEXIST, "mkdir");
		*at = '/';
	}
	return path;
}

/* Forgets everything under name in the scratch folder. */
UNUSED static void
scratch_clear(const char *name)
{
	nftw(scratch(name), remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

UNUSED static void
write_file(const char *path, const void *bytes, size_t count)
{
	FILE *file = fopen(path, "wb");
	need(file != NULL, path);
	need(fwrite(bytes, 1, count, file) == count, path);
	need(fclose(file) == 0, path);
}

UNUSED static void
write_text(const char *path, const char *text)
{
	write_file(path, text, strlen(text));
}

/* Bytes that look random and follow from name and salt. */
UNUSED static void
fill(void *memory, uint64_t bytes, const char *name, uint64_t salt)
{
	uint64_t state = UINT64_C(0x9E3779B97F4A7C15) ^ salt;
	unsigned char *out = memory;
	for (; *name; name++)
		state = (state ^ (unsigned char)*name) * UINT64_C(0x100000001B3);
	for (uint64_t i = 0; i < bytes; i++) {
		state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		out[i] = (unsigned char)(state >> 56);
	}
}

/* A file as it grows. */
struct maker {
	char *header;
	size_t header_bytes;
	char *data;
	size_t data_bytes;
	uint32_t tensors;
	uint32_t keys;
	uint64_t salt;
	char *infos; /* GGUF: tensor infos, kept apart from the keys */
	size_t info_bytes;
};

UNUSED static void
grow(char **memory, size_t *bytes, const void *more, size_t count)
{
	size_t now = *bytes, then = now + count, room = 64, old_room = 64;
	while (room < then)
		room *= 2;
	while (old_room < now)
		old_room *= 2;
	if (!*memory || room != old_room) {
		*memory = realloc(*memory, room);
		need(*memory != NULL, "realloc");
	}
	if (count)
		memcpy(*memory + now, more, count);
	*bytes = then;
}

UNUSED static void
maker_free(struct maker *maker)
{
	free(maker->header);
	free(maker->data);
	free(maker->infos);
	memset(maker, 0, sizeof *maker);
}

static void
add_data(struct maker *maker, const char *name, uint64_t bytes)
{
	char *noise = malloc(bytes + 1);
	need(noise != NULL, "malloc");
	fill(noise, bytes, name, maker->salt);
	grow(&maker->data, &maker->data_bytes, noise, bytes);
	free(noise);
}

/* shape as JSON: "[2,3]". name needs no escapes. */
UNUSED static void
st_add(struct maker *maker, const char *name, const char *dtype, const char *shape, uint64_t bytes)
{
	char text[1024];
	int length = snprintf(text, sizeof text,
			      "%c\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
			      maker->header ? ',' : '{', name, dtype, shape, maker->data_bytes,
			      maker->data_bytes + bytes);
	grow(&maker->header, &maker->header_bytes, text, (size_t)length);
	add_data(maker, name, bytes);
	maker->tensors++;
}

/* Bytes of the header's members before the first tensor, like "\"__metadata__\":{...}". */
UNUSED static void
st_member(struct maker *maker, const char *text)
{
	grow(&maker->header, &maker->header_bytes, maker->header ? "," : "{", 1);
	grow(&maker->header, &maker->header_bytes, text, strlen(text));
}

/* Writes the file and clears the maker. */
UNUSED static void
st_write(struct maker *maker, const char *path)
{
	FILE *file = fopen(path, "wb");
	uint64_t length;
	need(file != NULL, path);
	if (!maker->header)
		grow(&maker->header, &maker->header_bytes, "{", 1);
	grow(&maker->header, &maker->header_bytes, "}", 1);
	while (maker->header_bytes % 8)
		grow(&maker->header, &maker->header_bytes, " ", 1);
	length = maker->header_bytes;
	need(fwrite(&length, 8, 1, file) == 1, path);
	need(fwrite(maker->header, 1, maker->header_bytes, file) == maker->header_bytes, path);
	need(!maker->data_bytes ||
	     fwrite(maker->data, 1, maker->data_bytes, file) == maker->data_bytes, path);
	need(fclose(file) == 0, path);
	maker_free(maker);
}

/* One file with one F32 tensor of count elements. */
UNUSED static void
st_one(const char *path, const char *name, uint32_t count, uint64_t salt)
{
	struct maker maker = {.salt = salt};
	char shape[32];
	snprintf(shape, sizeof shape, "[%u]", count);
	st_add(&maker, name, "F32", shape, 4 * (uint64_t)count);
	st_write(&maker, path);
}

static void
put(char **memory, size_t *bytes, uint64_t value, size_t width)
{
	grow(memory, bytes, &value, width);
}

static void
put_string(char **memory, size_t *bytes, const char *text)
{
	put(memory, bytes, strlen(text), 8);
	grow(memory, bytes, text, strlen(text));
}

/* A key of kind (GGUF's number) whose value is width raw bytes. */
UNUSED static void
gg_key(struct maker *maker, const char *key, uint32_t kind, const void *raw, size_t width)
{
	put_string(&maker->header, &maker->header_bytes, key);
	put(&maker->header, &maker->header_bytes, kind, 4);
	grow(&maker->header, &maker->header_bytes, raw, width);
	maker->keys++;
}

UNUSED static void
gg_key_u16(struct maker *maker, const char *key, uint16_t value)
{
	gg_key(maker, key, 2, &value, 2);
}

UNUSED static void
gg_key_i32(struct maker *maker, const char *key, int32_t value)
{
	gg_key(maker, key, 5, &value, 4);
}

UNUSED static void
gg_key_string(struct maker *maker, const char *key, const char *text)
{
	put_string(&maker->header, &maker->header_bytes, key);
	put(&maker->header, &maker->header_bytes, 8, 4);
	put_string(&maker->header, &maker->header_bytes, text);
	maker->keys++;
}

/* dims in the file's order, fastest first. */
UNUSED static void
gg_add(struct maker *maker, const char *name, uint32_t type, uint32_t rank, const uint64_t *dims,
       uint64_t bytes)
{
	put_string(&maker->infos, &maker->info_bytes, name);
	put(&maker->infos, &maker->info_bytes, rank, 4);
	for (uint32_t i = 0; i < rank; i++)
		put(&maker->infos, &maker->info_bytes, dims[i], 8);
	put(&maker->infos, &maker->info_bytes, type, 4);
	put(&maker->infos, &maker->info_bytes, maker->data_bytes, 8);
	add_data(maker, name, bytes);
	while (maker->data_bytes % 32)
		put(&maker->data, &maker->data_bytes, 0, 1);
	maker->tensors++;
}

/* Writes the file and clears the maker. */
UNUSED static void
gg_write(struct maker *maker, const char *path)
{
	char *head = NULL;
	size_t bytes = 0;
	FILE *file = fopen(path, "wb");
	need(file != NULL, path);
	grow(&head, &bytes, "GGUF\3\0\0\0", 8);
	put(&head, &bytes, maker->tensors, 8);
	put(&head, &bytes, maker->keys, 8);
	grow(&head, &bytes, maker->header, maker->header_bytes);
	grow(&head, &bytes, maker->infos, maker->info_bytes);
	while (maker->tensors && bytes % 32)
		put(&head, &bytes, 0, 1);
	need(fwrite(head, 1, bytes, file) == bytes, path);
	need(!maker->data_bytes ||
	     fwrite(maker->data, 1, maker->data_bytes, file) == maker->data_bytes, path);
	need(fclose(file) == 0, path);
	free(head);
	maker_free(maker);
}

UNUSED static int
count_descriptors(void)
{
	int count = 0;
	for (int fd = 0; fd < 4096; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* Numbers from TEST_SEED, or from a seed of this run; it is printed. */
UNUSED static struct random
random_begin(void)
{
	uint64_t seed = random_seed((uint64_t)getpid() * 2654435761u);
	printf("# TEST_SEED=%" PRIu64 "\n", seed);
	return random_init(seed);
}

#endif
