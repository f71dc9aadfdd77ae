/* Parity cases: starting, contexts, the primary context and its reset. */
#include "parity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void
before_init(void)
{
	struct CUctx_st *context;
	int count, version;
	say("context", cu.ctx_current(&context));
	say("count", cu.device_count(&count));
	say("version", cu.driver_version(&version));
	say("flags", cu.init(1));
	say("init", cu.init(0));
	say("again", cu.init(0));
}

static void
error_names(void)
{
	const char *name = "", *text = "";
	say("unknown", cu.error_name(123456, &name));
	saw("unknown_name", "%s", name ? name : "NULL");
	say("unknown_text", cu.error_string(123456, &text));
	for (oh_cu_result code = 700; code < 722; code += 19)
		say("known", code);
}

static void
devices(void)
{
	struct CUctx_st *context;
	oh_cu_device device;
	char pci[32] = "", uuid[16];
	NEED(cu.init(0));
	say("none", cu.device_get(&device, 1000));
	say("negative", cu.device_get(&device, -1));
	say("retain_none", cu.primary_retain(&context, 1000));
	say("first", cu.device_get(&device, 0));
	saw("handle", "%d", device);
	say("pci", cu.device_pci(pci, sizeof pci, device));
	saw("pci_characters", "%zu", strlen(pci));
	say("uuid", cu.uuid_v2((struct CUuuid_st *)uuid, device));
}

static void
no_context(void)
{
	struct CUctx_st *context = (struct CUctx_st *)&context;
	struct CUstream_st *stream;
	struct CUevent_st *event;
	oh_cu_device device;
	oh_cu_address address;
	size_t left, total;
	unsigned int version;
	char *memory = host_make(4096, 0);
	NEED(cu.init(0));
	say("current", cu.ctx_current(&context));
	saw("current_is", "%s", context ? "something" : "NULL");
	say("pop", cu.ctx_pop(&context));
	say("push_null", cu.ctx_push(NULL));
	say("device", cu.ctx_device(&device));
	say("version", cu.ctx_version(NULL, &version));
	say("info", cu.mem_info(&left, &total));
	say("alloc", cu.mem_alloc(&address, 4096));
	say("register", cu.host_register(memory, 4096, 0));
	say("unregister", cu.host_unregister(memory));
	say("stream", cu.stream_create(&stream, 0));
	say("event", cu.event_create(&event, 0));
	say("copy", cu.copy_in(4096, memory, 1, NULL));
	say("sync", cu.stream_sync(NULL));
}

static void
context_stack(void)
{
	struct CUctx_st *first = context_make(), *second = context_make(), *got;
	NEED(cu.ctx_current(&got));
	saw("made", "%s", got == second ? "is current" : "is not current");
	say("push", cu.ctx_push(first));
	say("push_again", cu.ctx_push(first));
	NEED(cu.ctx_pop(&got));
	NEED(cu.ctx_pop(&got));
	saw("popped", "%s", got == first ? "the pushed" : "another");
	NEED(cu.ctx_current(&got));
	saw("below", "%s", got == second ? "as before" : "another");
	say("destroy_current", extra.ctx_destroy(second));
	NEED(cu.ctx_current(&got));
	saw("then", "%s", got == first ? "the first" : got ? "another" : "NULL");
}

static void
say_active(const char *step)
{
	unsigned int flags;
	int active = -1;
	NEED(cu.primary_state(0, &flags, &active));
	saw(step, "%s", active ? "active" : "not active");
}

static void
primary_references(void)
{
	struct CUctx_st *first, *second;
	NEED(cu.init(0));
	say_active("before");
	say("release_none", cu.primary_release(0));
	say("retain", cu.primary_retain(&first, 0));
	say_active("retained");
	say("retain_again", cu.primary_retain(&second, 0));
	saw("handle", "%s", first == second ? "the same" : "another");
	say("release", cu.primary_release(0));
	say_active("one_left");
	say("release_last", cu.primary_release(0));
	say_active("none_left");
	say("release_more", cu.primary_release(0));
}

static void
primary_reset(void)
{
	struct CUctx_st *first, *second, *popped;
	unsigned long long before = 0, after = 0;
	size_t left, total;
	unsigned int version;
	NEED(cu.init(0));
	NEED(cu.primary_retain(&first, 0));
	NEED(cu.ctx_id(first, &before));
	say("reset", extra.primary_reset(0));
	say_active("then");
	say("id", cu.ctx_id(first, &after));
	say("version", cu.ctx_version(first, &version));
	say("push", cu.ctx_push(first));
	say("use", cu.mem_info(&left, &total));
	say_active("used");
	cu.ctx_pop(&popped);
	say("retain", cu.primary_retain(&second, 0));
	saw("handle", "%s", first == second ? "the same" : "another");
	NEED(cu.ctx_id(second, &after));
	saw("id_after", "%s", before == after ? "the same" : "another");
	say("release", cu.primary_release(0));
	say_active("one_left");
	say("release_last", cu.primary_release(0));
	say_active("none_left");
	say("release_more", cu.primary_release(0));
}

static void
release_after_reset(void)
{
	struct CUctx_st *context;
	NEED(cu.init(0));
	NEED(cu.primary_retain(&context, 0));
	NEED(extra.primary_reset(0));
	say("release", cu.primary_release(0));
	say("release_more", cu.primary_release(0));
}

static void
id_after_release(void)
{
	struct CUctx_st *context;
	unsigned long long before = 0, after = 0;
	NEED(cu.init(0));
	NEED(cu.primary_retain(&context, 0));
	NEED(cu.ctx_id(context, &before));
	NEED(cu.primary_release(0));
	say("id", cu.ctx_id(context, &after));
	NEED(cu.primary_retain(&context, 0));
	NEED(cu.ctx_id(context, &after));
	saw("id_after", "%s", before == after ? "the same" : "another");
}

static void
reset_takes_memory(void)
{
	struct CUctx_st *context;
	char *memory = host_make(65536, 0);
	int ordinal;
	NEED(cu.init(0));
	NEED(cu.primary_retain(&context, 0));
	NEED(cu.ctx_push(context));
	oh_cu_address address = memory_make(65536);
	NEED(cu.host_register(memory, 65536, OH_CU_HOST_REGISTER_PORTABLE));
	NEED(extra.primary_reset(0));
	NEED(cu.primary_retain(&context, 0));
	NEED(cu.ctx_push(context));
	say("device", cu.pointer_attribute(&ordinal, OH_CU_POINTER_DEVICE_ORDINAL, address));
	say("host", cu.pointer_attribute(&ordinal, OH_CU_POINTER_DEVICE_ORDINAL,
					 (uintptr_t)memory));
	say("unregister", cu.host_unregister(memory));
	say("register", cu.host_register(memory, 65536, OH_CU_HOST_REGISTER_PORTABLE));
	say("unregister_new", cu.host_unregister(memory));
}

/* A context that was current nowhere when it was destroyed. */
static struct CUctx_st *
destroyed(void)
{
	struct CUctx_st *context = context_make(), *popped;
	NEED(cu.ctx_pop(&popped));
	NEED(extra.ctx_destroy(context));
	return context;
}

static void
destroyed_context_id(void)
{
	unsigned long long id;
	say("id", cu.ctx_id(destroyed(), &id));
}

static void
destroyed_context_version(void)
{
	unsigned int version;
	say("version", cu.ctx_version(destroyed(), &version));
}

static void
destroyed_context_push(void)
{
	size_t left, total;
	oh_cu_result code = cu.ctx_push(destroyed());
	say("push", code);
	if (code == OH_CU_SUCCESS)
		say("use", cu.mem_info(&left, &total));
}

static void *
destroy_elsewhere(void *context)
{
	static oh_cu_result code;
	code = extra.ctx_destroy(context);
	return &code;
}

static void
destroyed_context_current(void)
{
	struct CUctx_st *context = context_make(), *got = NULL;
	pthread_t thread;
	size_t left, total;
	unsigned long long id;
	oh_cu_device device;
	void *code;
	pthread_create(&thread, NULL, destroy_elsewhere, context);
	pthread_join(thread, &code);
	say("destroy", *(oh_cu_result *)code);
	say("current", cu.ctx_current(&got));
	saw("current_is", "%s", got == context ? "that" : got ? "another" : "NULL");
	say("device", cu.ctx_device(&device));
	say("id", cu.ctx_id(context, &id));
	say("use", cu.mem_info(&left, &total));
	say("pop", cu.ctx_pop(&got));
}

static void
destroyed_context_takes_pins(void)
{
	struct CUctx_st *context = context_make(), *popped;
	char *memory = pinned_make(65536, 0);
	unsigned int type;
	NEED(cu.ctx_pop(&popped));
	NEED(extra.ctx_destroy(context));
	context_make();
	say("host", cu.pointer_attribute(&type, OH_CU_POINTER_MEMORY_TYPE, (uintptr_t)memory));
	say("register", cu.host_register(memory, 65536, OH_CU_HOST_REGISTER_PORTABLE));
}

static void
after_fork(void)
{
	struct CUctx_st *context;
	int count;
	context_make();
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		alarm(10);
		say("init", cu.init(0));
		say("count", cu.device_count(&count));
		say("current", cu.ctx_current(&context));
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

static void
second_device(void)
{
	struct CUctx_st *first, *second;
	int count, ordinal = -1;
	oh_cu_address address;
	NEED(cu.init(0));
	NEED(cu.device_count(&count));
	if (count < 2) {
		saw("devices", "not tried");
		return;
	}
	NEED(extra.ctx_create(&second, 0, 1));
	address = memory_make(4096);
	NEED(extra.ctx_create(&first, 0, 0));
	say("attribute", cu.pointer_attribute(&ordinal, OH_CU_POINTER_DEVICE_ORDINAL, address));
	saw("ordinal", "%d", ordinal);
}

const struct parity_case parity_contexts[] = {
	{"before_init", before_init},
	{"error_names", error_names},
	{"devices", devices},
	{"no_context", no_context},
	{"context_stack", context_stack},
	{"primary_references", primary_references},
	{"primary_reset", primary_reset},
	{"release_after_reset", release_after_reset},
	{"id_after_release", id_after_release},
	{"reset_takes_memory", reset_takes_memory},
	{"destroyed_context_id", destroyed_context_id},
	{"destroyed_context_version", destroyed_context_version},
	{"destroyed_context_push", destroyed_context_push},
	{"destroyed_context_current", destroyed_context_current},
	{"destroyed_context_takes_pins", destroyed_context_takes_pins},
	{"after_fork", after_fork},
	{"second_device", second_device},
	{NULL, NULL},
};
