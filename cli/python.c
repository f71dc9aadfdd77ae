/* onehop pack, onehop sensors, onehop bench stream: what the Python package does.
 *
 * The process becomes Python, so that signals, standard streams and the exit status are Python's.
 * The interpreter is ONEHOP_PYTHON's, else python3; a package that it cannot import is said by the
 * program that it is given, which is the first to know.
 */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct usage pack_usage = {
	.name = "pack",
	.operands = "INPUT...",
	.summary = "pack files, tars, tables and logs into shards that stream",
	.about = "",
};

const struct usage sensors_usage = {
	.name = "sensors",
	.operands = "DIR",
	.summary = "make what the sensors of a car or a robot would have recorded",
	.about = "",
};

static const char program[] =
	"import sys\n"
	"try:\n"
	"    from onehop.__main__ import main\n"
	"except ModuleNotFoundError as error:\n"
	"    if error.name not in ('onehop', 'onehop.__main__'):\n"
	"        raise\n"
	"    sys.exit(f'onehop: {sys.argv[1]} is done by the Python package onehop, which '\n"
	"             f'{sys.executable} cannot import; pip install onehop there, or let '\n"
	"             'ONEHOP_PYTHON name the interpreter that has it')\n"
	"sys.exit(main(sys.argv[1:]))\n";

static int
become_python(const char *command, int argc, char **argv)
{
	static const char flag[] = "-c";
	char sentence[256], why[96], shown[SHOWN];
	const char *python = getenv("ONEHOP_PYTHON");
	if (!python || !*python)
		python = "python3";
	const char **words = calloc((size_t)argc + 5, sizeof *words);
	if (!words) {
		say("no memory for a command line", NULL);
		return EXIT_FAILED;
	}
	words[0] = python;
	words[1] = flag;
	words[2] = program;
	words[3] = command;
	for (int i = 0; i < argc; i++)
		words[4 + i] = argv[i];
	execvp(python, (char *const *)words);
	int failed = errno;
	free(words);
	snprintf(sentence, sizeof sentence, "%s is done in Python, and %s cannot be run: %s",
		 command, show(shown, python, strlen(python)),
		 strerror_r(failed, why, sizeof why));
	say(sentence, "install Python 3.10 or later, or let ONEHOP_PYTHON name it");
	return EXIT_FAILED;
}

int
cmd_pack(struct out *out, int argc, char **argv)
{
	(void)out;
	return become_python(pack_usage.name, argc, argv);
}

int
cmd_sensors(struct out *out, int argc, char **argv)
{
	(void)out;
	return become_python(sensors_usage.name, argc, argv);
}

int
bench_stream(int argc, char **argv)
{
	return become_python("bench-stream", argc, argv);
}
