/* Runs a fuzz target without a fuzzer: every file of a folder, and of each all that it becomes when
 * it is cut anywhere or one of its bytes is another. TAP on standard output.
 *
 * usage: replay NAME FOLDER
 */
#include "check.h"

#include <dirent.h>

#define LARGEST 65536 /* of a seed; larger ones run only as they are */

static unsigned long runs;

static void
run(const uint8_t *data, size_t size)
{
	LLVMFuzzerTestOneInput(data, size);
	runs++;
}

static void
vary(uint8_t *data, size_t size)
{
	static const uint8_t others[] = {0x00, 0xFF, '"', '{', ']', '-', '9', ' '};
	run(data, size);
	if (size > LARGEST / 16)
		return;
	for (size_t cut = 0; cut < size; cut++)
		run(data, cut);
	for (size_t at = 0; at < size; at++) {
		const uint8_t was = data[at];
		for (size_t i = 0; i < sizeof others; i++) {
			data[at] = others[i];
			run(data, size);
		}
		for (int bit = 0; bit < 8; bit++) {
			data[at] = (uint8_t)(was ^ 1 << bit);
			run(data, size);
		}
		data[at] = was;
	}
}

/* 1 if the file was run. */
static int
replay(const char *folder, const char *name)
{
	static uint8_t data[LARGEST];
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *file = fopen(path, "rb");
	if (!file) {
		printf("# cannot open %s\n", path);
		return 0;
	}
	size_t size = fread(data, 1, sizeof data, file);
	fclose(file);
	vary(data, size);
	return 1;
}

int
main(int argc, char **argv)
{
	unsigned long files = 0;
	DIR *folder = argc == 3 ? opendir(argv[2]) : NULL;
	if (!folder) {
		printf("Bail out! usage: replay NAME FOLDER\n");
		return 1;
	}
	for (struct dirent *entry; (entry = readdir(folder));)
		if (entry->d_name[0] != '.')
			files += (unsigned long)replay(argv[2], entry->d_name);
	closedir(folder);
	printf("# %lu seeds, %lu inputs\n", files, runs);
	printf("%s 1 - %s_survives_its_seeds_and_what_is_near_them\n1..1\n",
	       files ? "ok" : "not ok", argv[1]);
	return files ? 0 : 1;
}
