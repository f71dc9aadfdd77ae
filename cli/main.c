/* onehop: the command.
 *
 * It stands on the public API alone. main() makes sure that the three standard descriptors exist,
 * so that no file of ours takes their place, finds the command, and says at the end if standard
 * output could not be written; a reader that went away (EPIPE) is told nothing.
 */
#include "cli.h"
#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct command {
	const char *name;
	int (*run)(struct out *out, int argc, char **argv);
	const struct usage *usage; /* NULL: not for people */
};

static int cmd_help(struct out *out, int argc, char **argv);

static const struct usage help_usage = {
	.name = "help",
	.operands = "[COMMAND]",
	.summary = "this list, or what one command takes",
	.about = "",
};

static const struct command commands[] = {
	{"load", cmd_load, &load_usage},
	{"list", cmd_list, &list_usage},
	{"explain", cmd_explain, &explain_usage},
	{"prefetch", cmd_prefetch, &prefetch_usage},
	{"index", cmd_index, &index_usage},
	{"pack", cmd_pack, &pack_usage},
	{"sensors", cmd_sensors, &sensors_usage},
	{"stream", cmd_stream, &stream_usage},
	{"bench", cmd_bench, &bench_usage},
	{"options", cmd_options, &options_usage},
	{"version", cmd_version, &version_usage},
	{"help", cmd_help, &help_usage},
	{"bench-child", cmd_bench_child, NULL},
};
#define COMMANDS (sizeof commands / sizeof commands[0])

static void
print_help(struct out *out)
{
	out_text(out, "usage: onehop COMMAND ...\n\n"
		      "onehop moves bytes between storage and GPU memory in as few hops as the\n"
		      "machine allows, and says which way it took and why.\n\n");
	for (size_t i = 0; i < COMMANDS; i++)
		if (commands[i].usage)
			out_format(out, "  %-10s%-11s%s\n", commands[i].name,
				   commands[i].usage->operands, commands[i].usage->summary);
	out_text(out, "\nonehop COMMAND --help says what a command takes.\n"
		      "Exit status: 0 done; 1 an operation failed; 2 wrong usage; "
		      "3 the data is wrong or unsupported.\n");
}

static const struct command *
find_command(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static int
unknown_command(const char *name)
{
	const char *names[COMMANDS], *near;
	char remedy[64], shown[SHOWN];
	int count = 0;
	for (size_t i = 0; i < COMMANDS; i++)
		if (commands[i].usage)
			names[count++] = commands[i].name;
	near = nearest(name, names, count);
	if (near)
		snprintf(remedy, sizeof remedy, "did you mean %s?", near);
	return say_usage(near ? remedy : "see onehop help", "unknown command %s",
			 show(shown, name, strlen(name)));
}

static int
cmd_help(struct out *out, int argc, char **argv)
{
	char dashes[] = "--help", *arguments[] = {dashes};
	const struct command *command;
	if (argc > 1)
		return say_usage("name one", "onehop help takes one command");
	if (argc == 0 || argv[0][0] == '-' || strcmp(argv[0], "help") == 0) {
		print_help(out);
		return EXIT_DONE;
	}
	command = find_command(argv[0]);
	if (!command || !command->usage)
		return unknown_command(argv[0]);
	return command->run(out, 1, arguments);
}

static int
dispatch(struct out *out, int argc, char **argv)
{
	if (argc < 2)
		return say_usage("see onehop help", "no command is given");
	if (strcmp(argv[1], "--version") == 0) {
		out_format(out, "onehop %s\n", onehop_version());
		return EXIT_DONE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
		return cmd_help(out, 0, NULL);
	const struct command *command = find_command(argv[1]);
	return command ? command->run(out, argc - 2, argv + 2) : unknown_command(argv[1]);
}

/* A closed standard descriptor would be given to the next file that is opened. Standard output is
 * then one that cannot be written, so that the loss is reported. */
static void
fill_standard_descriptors(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
			(void)!open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

int
main(int argc, char **argv)
{
	struct out out;
	char sentence[128], why[96];
	fill_standard_descriptors();
	signals_catch();
	out_begin(&out, STDOUT_FILENO);
	int status = dispatch(&out, argc, argv);
	out_flush(&out);
	if (!out.failed)
		return status;
	if (out.failed != EPIPE && status == EXIT_DONE) {
		snprintf(sentence, sizeof sentence, "cannot write to standard output: %s",
			 strerror_r(out.failed, why, sizeof why));
		say(sentence, "send it to a place that takes it");
	}
	return status == EXIT_DONE ? EXIT_FAILED : status;
}
