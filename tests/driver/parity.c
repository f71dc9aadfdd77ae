/* What onehop relies on of the CUDA driver, observed: runs against the libcuda.so.1 that the loader
 * finds, be it the real one or the look-alike, and prints the same lines for both if the look-alike
 * is right. parity_check.py compares with real.txt, which a GPU machine wrote.
 *
 * Nothing that differs from run to run or machine to machine is printed: no address, no size of the
 * device. This file is the frame; the cases are in parity_contexts.c, parity_memory.c and
 * parity_order.c. "not tried" stands where the machine lacks what a case needs.
 */
#include "parity.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_SECONDS = 30 };

struct oh_cuda cu;
struct extra extra;

static const char *running;

void
saw(const char *step, const char *format, ...)
{
	va_list args;
	printf("%s.%s: ", running, step);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

static const char *
name_of(oh_cu_result code)
{
	static char number[32];
	const char *name = NULL;
	if (cu.error_name(code, &name) == OH_CU_SUCCESS && name)
		return name;
	snprintf(number, sizeof number, "%u", code);
	return number;
}

void
say(const char *step, oh_cu_result code)
{
	saw(step, "%s", name_of(code));
}

void
need(oh_cu_result code, const char *call)
{
	if (code == OH_CU_SUCCESS)
		return;
	saw("need", "%s in %s", name_of(code), call);
	_exit(0);
}

struct CUctx_st *
context_make(void)
{
	struct CUctx_st *context;
	NEED(cu.init(0));
	NEED(extra.ctx_create(&context, 0, 0));
	return context;
}

struct CUstream_st *
stream_make(unsigned int flags)
{
	struct CUstream_st *stream;
	NEED(cu.stream_create(&stream, flags));
	return stream;
}

struct CUevent_st *
event_make(void)
{
	struct CUevent_st *event;
	NEED(cu.event_create(&event, OH_CU_EVENT_DISABLE_TIMING));
	return event;
}

oh_cu_address
memory_make(size_t bytes)
{
	oh_cu_address address;
	NEED(cu.mem_alloc(&address, bytes));
	return address;
}

char *
host_make(size_t bytes, int value)
{
	char *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	if (!memory)
		_exit(3);
	memset(memory, value, (bytes + 4095) / 4096 * 4096);
	return memory;
}

char *
pinned_make(size_t bytes, int value)
{
	char *memory = host_make(bytes, value);
	NEED(cu.host_register(memory, bytes, OH_CU_HOST_REGISTER_PORTABLE));
	return memory;
}

int
all_are(const char *memory, size_t bytes, int value)
{
	for (size_t i = 0; i < bytes; i++)
		if (memory[i] != (char)value)
			return 0;
	return 1;
}

void
gate_pass(void *argument)
{
	struct gate *gate = argument;
	pthread_mutex_lock(&gate->lock);
	while (!gate->open)
		pthread_cond_wait(&gate->changed, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

void
gate_open(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->open = 1;
	pthread_cond_broadcast(&gate->changed);
	pthread_mutex_unlock(&gate->lock);
}

/* Ends the process if there is no driver to observe. */
static void
load(int required)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		printf("no driver: %s\n", dlerror());
		exit(2);
	}
#define LOAD(table, field, symbol, needed)                                                         \
	do {                                                                                       \
		*(void **)&table.field = dlsym(library, symbol);                                   \
		if (!table.field && needed && required) {                                          \
			printf("the driver has no %s\n", symbol);                                  \
			exit(2);                                                                   \
		}                                                                                  \
	} while (0);
#define LOAD_REQUIRED(field, name, suffix, version, arguments) LOAD(cu, field, #name #suffix, 1)
#define LOAD_OPTIONAL(field, name, suffix, version, arguments) LOAD(cu, field, #name #suffix, 0)
#define LOAD_EXTRA(field, name, suffix, version, arguments) LOAD(extra, field, #name #suffix, 1)
	OH_CUDA_REQUIRED(LOAD_REQUIRED)
	OH_CUDA_OPTIONAL(LOAD_OPTIONAL)
	EXTRA(LOAD_EXTRA)
}

static void
run_case(const struct parity_case *test)
{
	int status = 0;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		running = test->name;
		alarm(LIMIT_SECONDS);
		load(1);
		test->run();
		fflush(stdout);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		exit(3);
	if (WIFSIGNALED(status))
		printf("%s: ended by signal %d\n", test->name, WTERMSIG(status));
	else if (WEXITSTATUS(status) != 0)
		printf("%s: ended with %d\n", test->name, WEXITSTATUS(status));
}

int
main(int argc, char **argv)
{
	const struct parity_case *const files[] = {parity_contexts, parity_memory, parity_order};
	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
		for (const struct parity_case *test = files[i]; test->name; test++)
			if (argc < 2 || strstr(test->name, argv[1]))
				run_case(test);
	return 0;
}
