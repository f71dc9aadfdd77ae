/* The child processes of onehop bench.
 *
 * Each is this very program, so its records can be taken as they are. A child that fails has said
 * why on standard error, which is ours too, so the error here has a status and no words. Ctrl-C is
 * passed on.
 */
#include "bench.h"
#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The sentence of an error that was said already; "%s" since a format of no length is warned of. */
#define SAID "%s", ""

extern char **environ;

struct arguments {
	const char **words;
	size_t count;
};

static void
push(struct arguments *arguments, const char *word)
{
	arguments->words[arguments->count++] = word;
}

/* "onehop NAME --device D", with room for `more` words, and the runtime options as they were given.
 * 0, or -1 for no memory. */
static int
arguments_begin(struct arguments *arguments, const struct bench *bench, const char *name,
		size_t more)
{
	size_t options = (size_t)bench->request.option_count;
	arguments->count = 0;
	arguments->words = calloc(2 * options + more + 8, sizeof *arguments->words);
	if (!arguments->words)
		return -1;
	push(arguments, "onehop");
	push(arguments, name);
	push(arguments, "--device");
	push(arguments, bench->device);
	for (size_t i = 0; i < options; i++) {
		push(arguments, "--option");
		push(arguments, bench->request.option_texts[i]);
	}
	return 0;
}

/* Starts it with its standard output in *from. */
static onehop_status
start(const struct arguments *arguments, pid_t *pid, int *from, struct onehop_error *error)
{
	int ends[2], failed;
	posix_spawn_file_actions_t actions;
	if (pipe2(ends, O_CLOEXEC) != 0)
		return fail(error, ONEHOP_LIMIT, errno, "cannot make a pipe");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
	failed = posix_spawn(pid, "/proc/self/exe", &actions, NULL,
			     (char *const *)(uintptr_t)arguments->words, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	if (failed) {
		close(ends[0]);
		return fail(error, ONEHOP_LIMIT, failed, "cannot start a process");
	}
	*from = ends[0];
	return ONEHOP_OK;
}

/* Reads until the child closes its end. Bytes beyond room are dropped. */
static size_t
take_all(int from, pid_t pid, char *to, size_t room)
{
	size_t used = 0;
	char rest[4096];
	for (;;) {
		int full = used == room;
		ssize_t got = read(from, full ? rest : to + used, full ? sizeof rest : room - used);
		if (got == 0)
			return used;
		if (got > 0)
			used += full ? 0 : (size_t)got;
		else if (errno != EINTR)
			return used;
		else if (signals_caught())
			kill(pid, SIGTERM);
	}
}

/* Runs a child to its end. Returns what it wrote in *used. */
static onehop_status
run(const struct arguments *arguments, char *to, size_t room, size_t *used,
    struct onehop_error *error)
{
	pid_t pid;
	int from = -1, ended = 0;
	onehop_status status = start(arguments, &pid, &from, error);
	if (status)
		return status;
	*used = take_all(from, pid, to, room);
	close(from);
	while (waitpid(pid, &ended, 0) < 0 && errno == EINTR)
		if (signals_caught())
			kill(pid, SIGTERM);
	if (signals_caught())
		return fail(error, ONEHOP_CANCELLED, 0, "cancelled");
	if (WIFSIGNALED(ended))
		return fail(error, ONEHOP_IO, 0, "a process of the benchmark died of signal %d",
			    WTERMSIG(ended));
	switch (WEXITSTATUS(ended)) {
	case EXIT_DONE:
		return ONEHOP_OK;
	case EXIT_USAGE:
		return fail(error, ONEHOP_INVALID_ARGUMENT, 0, SAID);
	case EXIT_DATA:
		return fail(error, ONEHOP_MISMATCH, 0, SAID);
	default:
		return fail(error, ONEHOP_IO, 0, SAID);
	}
}

onehop_status
bench_run(const struct bench *bench, const char *kind, const char *path, const char *second,
	  uint64_t repeat, struct bench_series *series, struct onehop_error *error)
{
	struct arguments arguments;
	char count[24];
	size_t used = 0, room = (BENCH_RECORDS - series->count) * sizeof series->records[0];
	snprintf(count, sizeof count, "%llu", (unsigned long long)repeat);
	if (!series->records)
		series->records = calloc(BENCH_RECORDS, sizeof series->records[0]);
	if (!series->records || arguments_begin(&arguments, bench, "bench-child", 6))
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the benchmark's records");
	push(&arguments, "--repeat");
	push(&arguments, count);
	push(&arguments, "--");
	push(&arguments, kind);
	push(&arguments, path);
	if (second)
		push(&arguments, second);
	onehop_status status = run(&arguments, (char *)(series->records + series->count), room,
				   &used, error);
	free(arguments.words);
	series->count += used / sizeof series->records[0];
	return status;
}

onehop_status
bench_verify(const struct bench *bench, const char *path, struct onehop_error *error)
{
	struct arguments arguments;
	char nothing[1];
	size_t used;
	if (arguments_begin(&arguments, bench, "load", 4))
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for a command line");
	push(&arguments, "--verify");
	push(&arguments, "--quiet");
	push(&arguments, "--");
	push(&arguments, path);
	onehop_status status = run(&arguments, nothing, 0, &used, error);
	free(arguments.words);
	return status;
}
