/* Exported tensors over every memory: what the taker sees, and that the memory is there as long as a
 * tensor is and no longer, whatever goes first. TEST_DEVICE names the device.
 *
 * Whether memory is free again shows in the runtime's budget for buffers, and on a GPU in what the
 * look-alike driver still holds.
 */
#include "harness.h"

#include "driver/extra.h"

#include <onehop/onehop.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOM 4096
#define FILLED 0x5A

static const char *device;
static struct onehop_error error;
static struct fake_controls fake;

static int
on_host(void)
{
	return strcmp(device, "host") == 0;
}

#define CHECK_FAILS(call, want, part)                                                              \
	do {                                                                                       \
		error = (struct onehop_error){0};                                                  \
		CHECK_STR(onehop_status_name(call), onehop_status_name(want));                     \
		CHECK_HOLDS(error.message, part);                                                  \
	} while (0)

/* Nothing is left in the driver. */
#define CHECK_NOTHING_HELD()                                                                       \
	do {                                                                                       \
		struct fake_outstanding held = {0};                                                \
		if (!on_host())                                                                    \
			fake.outstanding(&held);                                                   \
		CHECK_EQ(held.allocations + held.streams + held.events + held.registrations, 0);   \
		CHECK_EQ(held.primaries, 0);                                                       \
		CHECK_EQ(held.misuses, 0);                                                         \
	} while (0)

/* A runtime that gives out ROOM bytes at most, and a buffer that has them all. */
struct world {
	struct onehop_runtime *runtime;
	struct onehop_buffer *buffer;
};

static int
begin(struct world *w)
{
	struct onehop_runtime_options options;
	*w = (struct world){0};
	onehop_runtime_options_init(&options);
	options.buffer_limit_bytes = ROOM;
	return onehop_runtime_create(&options, &w->runtime, &error) == ONEHOP_OK &&
	       onehop_buffer_alloc(w->runtime, device, ROOM, &w->buffer, &error) == ONEHOP_OK &&
	       onehop_buffer_fill(w->buffer, 0, ROOM, FILLED, &error) == ONEHOP_OK;
}

static void
end(struct world *w)
{
	onehop_buffer_free(w->buffer);
	onehop_runtime_destroy(w->runtime);
}

static onehop_status
export(struct world *w, struct onehop_dl_managed **managed)
{
	const uint64_t shape[] = {4, 16};
	return onehop_buffer_export(w->buffer, 64, "F32", shape, 2, 0, (void **)managed, &error);
}

/* Has the memory of an earlier buffer been given back? */
static int
has_room(struct world *w)
{
	struct onehop_buffer *other;
	if (onehop_buffer_alloc(w->runtime, device, ROOM, &other, &error))
		return 0;
	onehop_buffer_free(other);
	return 1;
}

static uint64_t
exports_of(const struct onehop_buffer *buffer)
{
	struct onehop_buffer_info info = {.size = sizeof info};
	onehop_buffer_query(buffer, &info);
	return info.exports;
}

/* Does the tensor's memory still hold what the buffer was filled with? */
static int
is_readable(const struct onehop_dl_managed *managed)
{
	const unsigned char *at = managed->tensor.data;
	if (!on_host())
		at = fake.memory((oh_cu_address)(uintptr_t)managed->tensor.data);
	for (int i = 0; at && i < 256; i++)
		if (at[i] != FILLED)
			return 0;
	return at != NULL;
}

TEST(a_tensor_says_what_it_is)
{
	struct world w;
	struct onehop_dl_managed *m;
	struct onehop_buffer_info info = {.size = sizeof info};
	CHECK(begin(&w));
	onehop_buffer_query(w.buffer, &info);
	CHECK_OK(export(&w, &m));
	CHECK_EQ(m->major, 1);
	CHECK_EQ(m->flags, 0);
	CHECK_EQ((uintptr_t)m->tensor.data, info.address + 64);
	CHECK_EQ(m->tensor.byte_offset, 0);
	CHECK_EQ(m->tensor.device_type, on_host() ? ONEHOP_DL_CPU : ONEHOP_DL_CUDA);
	CHECK_EQ(m->tensor.device_id, 0);
	CHECK_EQ(m->tensor.ndim, 2);
	CHECK_EQ(m->tensor.shape[0], 4);
	CHECK_EQ(m->tensor.shape[1], 16);
	CHECK_EQ(m->tensor.strides[0], 16);
	CHECK_EQ(m->tensor.strides[1], 1);
	CHECK(is_readable(m));
	m->deleter(m);
	end(&w);
	CHECK_NOTHING_HELD();
}

/* DLPack's numbers: code, bits, lanes, and the last of {2, 4} elements as they are counted. */
TEST(every_type_has_its_code)
{
	static const struct {
		const char *name;
		int code, bits, lanes, last;
	} rows[] = {
		{"BOOL", 6, 8, 1, 4},         {"U8", 1, 8, 1, 4},       {"U16", 1, 16, 1, 4},
		{"U32", 1, 32, 1, 4},         {"U64", 1, 64, 1, 4},     {"I8", 0, 8, 1, 4},
		{"I16", 0, 16, 1, 4},         {"I32", 0, 32, 1, 4},     {"I64", 0, 64, 1, 4},
		{"F16", 2, 16, 1, 4},         {"BF16", 4, 16, 1, 4},    {"F32", 2, 32, 1, 4},
		{"F64", 2, 64, 1, 4},         {"C64", 5, 64, 1, 4},     {"F8_E4M3", 10, 8, 1, 4},
		{"F8_E4M3FNUZ", 11, 8, 1, 4}, {"F8_E5M2", 12, 8, 1, 4}, {"F8_E5M2FNUZ", 13, 8, 1, 4},
		{"F8_E8M0", 14, 8, 1, 4},     {"F6_E2M3", 15, 6, 1, 4}, {"F6_E3M2", 16, 6, 1, 4},
		{"F4", 17, 4, 2, 2},
	};
	const uint64_t shape[] = {2, 4};
	struct world w;
	CHECK(begin(&w));
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct onehop_dl_managed *m;
		uint64_t bytes = (uint64_t)rows[i].bits;
		CHECK_OK(onehop_buffer_export(w.buffer, ROOM - bytes, rows[i].name, shape, 2, 0,
					      (void **)&m, &error));
		CHECK_EQ(m->tensor.code, rows[i].code);
		CHECK_EQ(m->tensor.bits, rows[i].bits);
		CHECK_EQ(m->tensor.lanes, rows[i].lanes);
		CHECK_EQ(m->tensor.shape[1], rows[i].last);
		CHECK_EQ(m->tensor.strides[0], rows[i].last);
		m->deleter(m);
		CHECK_FAILS(onehop_buffer_export(w.buffer, ROOM - bytes + 1, rows[i].name, shape, 2,
						 0, (void **)&m, &error),
			    ONEHOP_INVALID_ARGUMENT, "outside a buffer");
	}
	end(&w);
}

TEST(no_dimensions_no_elements_and_odd_rows_are_told)
{
	const uint64_t empty[] = {0, UINT64_C(1) << 62, 8}, odd[] = {2, 3};
	struct world w;
	struct onehop_dl_managed *m;
	CHECK(begin(&w));
	CHECK_OK(onehop_buffer_export(w.buffer, 8, "F64", NULL, 0, 0, (void **)&m, &error));
	CHECK_EQ(m->tensor.ndim, 0);
	CHECK(is_readable(m));
	m->deleter(m);
	CHECK_OK(onehop_buffer_export(w.buffer, ROOM, "F32", empty, 3, 0, (void **)&m, &error));
	CHECK(m->tensor.data == NULL);
	CHECK_EQ(m->tensor.shape[1], INT64_C(1) << 62);
	CHECK(m->tensor.strides != NULL);
	m->deleter(m);
	CHECK_OK(onehop_buffer_export(w.buffer, 0, "F4", odd, 2, 0, (void **)&m, &error));
	CHECK_EQ(m->tensor.lanes, 1);
	CHECK_EQ(m->tensor.shape[1], 3);
	m->deleter(m);
	end(&w);
}

TEST(flags_go_along_and_the_old_struct_has_none)
{
	const uint64_t shape[] = {8};
	const uint32_t both = ONEHOP_EXPORT_READ_ONLY | ONEHOP_EXPORT_COPIED;
	struct world w;
	struct onehop_dl_managed *m;
	struct onehop_dl_managed_old *old;
	CHECK(begin(&w));
	CHECK_OK(onehop_buffer_export(w.buffer, 0, "U8", shape, 1, both, (void **)&m, &error));
	CHECK_EQ(m->flags, 3);
	m->deleter(m);
	CHECK_OK(onehop_buffer_export(w.buffer, 0, "U8", shape, 1,
				      ONEHOP_EXPORT_OLD | ONEHOP_EXPORT_COPIED, (void **)&old, &error));
	CHECK_EQ(old->tensor.shape[0], 8);
	CHECK_EQ(old->tensor.bits, 8);
	CHECK_EQ(exports_of(w.buffer), 1);
	old->deleter(old);
	CHECK_EQ(exports_of(w.buffer), 0);
	CHECK_STR(onehop_export_capsule_name(0), "dltensor_versioned");
	CHECK_STR(onehop_export_capsule_name(ONEHOP_EXPORT_OLD | ONEHOP_EXPORT_COPIED), "dltensor");
	end(&w);
}

TEST(what_cannot_be_exported_is_refused_with_its_reason)
{
	const uint64_t huge[] = {UINT64_C(1) << 40, UINT64_C(1) << 40}, beyond[] = {UINT64_MAX};
	const uint64_t three[] = {3};
	struct world w;
	void *m = NULL;
	CHECK(begin(&w));
	CHECK_FAILS(onehop_buffer_export(w.buffer, 0, "Q4_K", three, 1, 0, &m, &error),
		    ONEHOP_UNSUPPORTED_DATA, "Q4_K");
	CHECK_FAILS(onehop_buffer_export(w.buffer, 0, "F4", three, 1, 0, &m, &error),
		    ONEHOP_INVALID_ARGUMENT, "12 bits of F4");
	CHECK_FAILS(onehop_buffer_export(w.buffer, 0, "F32", huge, 2, 0, &m, &error),
		    ONEHOP_INVALID_ARGUMENT, "too large");
	CHECK_FAILS(onehop_buffer_export(w.buffer, 0, "U8", beyond, 1, 0, &m, &error),
		    ONEHOP_INVALID_ARGUMENT, "too large");
	CHECK_FAILS(onehop_buffer_export(w.buffer, 0, "U8", three, 1, 8, &m, &error),
		    ONEHOP_INVALID_ARGUMENT, "unknown bits");
	CHECK_FAILS(onehop_buffer_export(w.buffer, 0, "U8", three, 1,
					 ONEHOP_EXPORT_OLD | ONEHOP_EXPORT_READ_ONLY, &m, &error),
		    ONEHOP_INVALID_ARGUMENT, "read-only");
	CHECK_FAILS(onehop_buffer_export(w.buffer, 0, "U8", NULL, 1, 0, &m, &error),
		    ONEHOP_INVALID_ARGUMENT, "NULL");
	CHECK(m == NULL);
	CHECK_EQ(exports_of(w.buffer), 0);
	end(&w);
}

TEST(the_last_deleter_gives_the_memory_back)
{
	struct world w;
	struct onehop_dl_managed *first, *second;
	CHECK(begin(&w));
	CHECK_OK(export(&w, &first));
	CHECK_OK(export(&w, &second));
	CHECK_EQ(exports_of(w.buffer), 2);
	onehop_buffer_free(w.buffer);
	w.buffer = NULL;
	CHECK(!has_room(&w));
	first->deleter(first);
	CHECK(!has_room(&w));
	CHECK(is_readable(second));
	second->deleter(second);
	CHECK(has_room(&w));
	end(&w);
	CHECK_NOTHING_HELD();
}

TEST(memory_of_the_callers_is_left_alone)
{
	static _Alignas(64) unsigned char memory[256];
	struct onehop_runtime *runtime;
	struct world w = {0};
	struct onehop_dl_managed *m;
	if (!on_host())
		SKIP("the caller's memory is host memory");
	CHECK_OK(onehop_runtime_create(NULL, &runtime, &error));
	CHECK_OK(onehop_buffer_wrap(runtime, device, (uintptr_t)(memory), sizeof memory, &w.buffer,
				    &error));
	CHECK_OK(onehop_buffer_export(w.buffer, 0, "U8", (uint64_t[]){256}, 1, 0, (void **)&m, &error));
	onehop_buffer_free(w.buffer);
	CHECK(m->tensor.data == memory);
	memory[255] = 1;
	m->deleter(m);
	CHECK_EQ(memory[255], 1);
	onehop_runtime_destroy(runtime);
}

TEST(a_tensor_outlives_its_buffer_and_the_runtime)
{
	struct world w;
	struct onehop_dl_managed *m;
	CHECK(begin(&w));
	CHECK_OK(export(&w, &m));
	end(&w);
	CHECK(is_readable(m));
	m->deleter(m);
	CHECK_NOTHING_HELD();
}

/* A load leaves a ring behind, which goes with the runtime: only the tensor's memory stays. */
TEST(the_ring_does_not_wait_for_a_tensor)
{
	char path[] = "/tmp/onehop-dlpack-XXXXXX";
	static const char text[ROOM] = {1};
	struct onehop_file *file;
	struct onehop_plan *plan;
	struct onehop_transfer *transfer;
	struct onehop_dl_managed *m;
	struct fake_outstanding left;
	struct world w;
	int descriptor = mkstemp(path);
	CHECK(descriptor >= 0 && write(descriptor, text, sizeof text) == ROOM && !close(descriptor));
	CHECK(begin(&w));
	CHECK_OK(onehop_file_open(w.runtime, path, &file, &error));
	struct onehop_extent extent = {file, 0, ROOM, 1, 0, w.buffer, 0, "the.tensor"};
	CHECK_OK(onehop_plan_create(w.runtime, &extent, 1, &plan, &error));
	CHECK_OK(onehop_transfer_prepare(plan, &transfer, &error));
	CHECK_OK(onehop_transfer_start(transfer, NULL, &error));
	CHECK_OK(onehop_transfer_wait(transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_OK(export(&w, &m));
	onehop_transfer_destroy(transfer);
	onehop_plan_destroy(plan);
	onehop_file_close(file);
	end(&w);
	unlink(path);
	if (!on_host()) {
		fake.outstanding(&left);
		CHECK_EQ(left.registrations, 0);
		CHECK_EQ(left.events, 0);
		CHECK_EQ(left.allocations, 1);
	}
	m->deleter(m);
	CHECK_NOTHING_HELD();
}

enum { TAKERS = 8, EACH = 200 };

struct taker {
	pthread_t thread;
	struct world *world;
	struct onehop_dl_managed *tensors[EACH];
	atomic_int *go;
};

static void *
drop_all(void *argument)
{
	struct taker *taker = argument;
	while (!atomic_load(taker->go))
		;
	for (int i = 0; i < EACH; i++)
		taker->tensors[i]->deleter(taker->tensors[i]);
	return NULL;
}

TEST(many_threads_drop_at_once_while_the_owner_does)
{
	static struct taker takers[TAKERS];
	atomic_int go = 0;
	struct world w;
	CHECK(begin(&w));
	for (int t = 0; t < TAKERS; t++) {
		takers[t].go = &go;
		for (int i = 0; i < EACH; i++)
			CHECK_OK(export(&w, &takers[t].tensors[i]));
	}
	CHECK_EQ(exports_of(w.buffer), TAKERS * EACH);
	for (int t = 0; t < TAKERS; t++)
		CHECK_EQ(pthread_create(&takers[t].thread, NULL, drop_all, &takers[t]), 0);
	atomic_store(&go, 1);
	end(&w);
	for (int t = 0; t < TAKERS; t++)
		pthread_join(takers[t].thread, NULL);
	CHECK_NOTHING_HELD();
}

/* In the child: is the memory at the tensor's address still there? */
static int
is_kept(const unsigned char *at)
{
	struct fake_outstanding held;
	if (on_host())
		return at[0] == FILLED && at[255] == FILLED;
	fake.outstanding(&held);
	return held.allocations == 1 && held.misuses == 0;
}

TEST(a_forked_child_exports_nothing)
{
	struct world w;
	struct onehop_dl_managed *m;
	int status;
	CHECK(begin(&w));
	pid_t child = fork();
	if (child == 0)
		_exit(export(&w, &m) == ONEHOP_FORKED ? 0 : 1);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	end(&w);
}

TEST(a_forked_child_may_call_the_last_deleter_and_frees_nothing)
{
	struct world w;
	struct onehop_dl_managed *m;
	int status;
	CHECK(begin(&w));
	CHECK_OK(export(&w, &m));
	onehop_buffer_free(w.buffer);
	w.buffer = NULL;
	pid_t child = fork();
	if (child == 0) {
		const unsigned char *at = m->tensor.data;
		m->deleter(m);
		_exit(is_kept(at) ? 0 : 1);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK(is_readable(m));
	m->deleter(m);
	CHECK(has_room(&w));
	end(&w);
	CHECK_NOTHING_HELD();
}

TEST(a_capsule_of_no_python_is_left_alone)
{
	onehop_export_capsule_destroy(NULL);
}

int
main(int argc, char **argv)
{
	device = getenv("TEST_DEVICE");
	if (!device)
		device = "host";
	if (!on_host()) {
		void *library = dlopen("libcuda.so.1", RTLD_NOW);
		if (!library || !dlsym(library, "fake_cuda_seed")) {
			printf("1..0 # SKIP the look-alike driver is not on the loader's path\n");
			return 0;
		}
#define LOAD_CONTROL(field, name, arguments, type) *(void **)&fake.field = dlsym(library, #name);
		FAKE_CONTROLS(LOAD_CONTROL)
	}
	return test_main(argc, argv);
}
