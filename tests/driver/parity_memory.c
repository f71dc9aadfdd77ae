/* Parity cases: allocation, what is told about an address, and pinning. */
#include "parity.h"

#include <stdlib.h>

static void
allocation(void)
{
	oh_cu_address address = 0;
	context_make();
	say("nothing", cu.mem_alloc(&address, 0));
	say("too_much", cu.mem_alloc(&address, (size_t)1 << 50));
	say("one_byte", cu.mem_alloc(&address, 1));
	saw("aligned_256", "%s", address % 256 ? "no" : "yes");
	say("free_inside", cu.mem_free(address + 1));
	say("free", cu.mem_free(address));
	say("free_again", cu.mem_free(address));
	say("free_null", cu.mem_free(0));
}

/* All that is asked about an address, relative to where its memory begins. */
static void
facts_of(const char *what, struct CUctx_st *ours, oh_cu_address start, oh_cu_address address)
{
	struct CUctx_st *context = NULL;
	unsigned int type = 0;
	int ordinal = -1;
	oh_cu_address base = 0, range_start = 0;
	size_t bytes = 0, range = 0;
	oh_cu_result code = cu.pointer_attribute(&context, OH_CU_POINTER_CONTEXT, address);
	say(what, code);
	if (code == OH_CU_SUCCESS)
		saw("context", "%s", context == ours ? "ours" : context ? "another" : "NULL");
	code = cu.pointer_attribute(&type, OH_CU_POINTER_MEMORY_TYPE, address);
	say("type", code);
	if (code == OH_CU_SUCCESS)
		saw("type_is", "%u", type);
	code = cu.pointer_attribute(&ordinal, OH_CU_POINTER_DEVICE_ORDINAL, address);
	say("ordinal", code);
	if (code == OH_CU_SUCCESS)
		saw("ordinal_is", "%d", ordinal);
	code = cu.pointer_attribute(&range_start, OH_CU_POINTER_RANGE_START, address);
	say("range_start", code);
	if (code == OH_CU_SUCCESS)
		saw("range_start_is", "%lld", (long long)(range_start - start));
	code = cu.pointer_attribute(&range, OH_CU_POINTER_RANGE_BYTES, address);
	say("range_bytes", code);
	if (code == OH_CU_SUCCESS)
		saw("range_bytes_are", "%zu", range);
	code = cu.mem_range(&base, &bytes, address);
	say("address_range", code);
	if (code == OH_CU_SUCCESS)
		saw("address_range_is", "%zu at %lld", bytes, (long long)(base - start));
}

static void
address_of_device(void)
{
	struct CUctx_st *context = context_make();
	oh_cu_address address = memory_make(100000);
	facts_of("start", context, address, address);
	facts_of("inside", context, address, address + 99999);
	NEED(cu.mem_free(address));
	facts_of("freed", context, address, address);
}

static void
address_of_host(void)
{
	struct CUctx_st *context = context_make();
	char *memory = host_make(65536, 0);
	facts_of("pageable", context, (uintptr_t)memory, (uintptr_t)memory);
	facts_of("null", context, 0, 0);
}

static void
address_of_pinned(void)
{
	struct CUctx_st *context = context_make();
	char *memory = pinned_make(65536, 0);
	facts_of("start", context, (uintptr_t)memory, (uintptr_t)memory);
	facts_of("inside", context, (uintptr_t)memory, (uintptr_t)memory + 65535);
	NEED(cu.host_unregister(memory));
	facts_of("unpinned", context, (uintptr_t)memory, (uintptr_t)memory);
}

static void
address_of_pool(void)
{
	struct CUctx_st *context = context_make();
	struct CUstream_st *stream = stream_make(OH_CU_STREAM_NON_BLOCKING);
	oh_cu_address address;
	NEED(extra.pool_alloc(&address, (size_t)4 << 20, stream));
	NEED(cu.stream_sync(stream));
	facts_of("start", context, address, address);
	facts_of("inside", context, address, address + 12345);
	say("free", extra.pool_free(address, stream));
}

enum { PIECE = 2 << 20 };

static oh_cu_address
map_two_of_three(void)
{
	struct extra_memory properties = {.type = 1, .location = {1, 0}};
	struct extra_access access = {{1, 0}, 3};
	unsigned long long handle;
	oh_cu_address at;
	NEED(extra.range_reserve(&at, 3 * PIECE, 0, 0, 0));
	for (unsigned int i = 0; i < 2; i++) {
		NEED(extra.memory_create(&handle, PIECE,
					 (struct CUmemAllocationProp_st *)&properties, 0));
		NEED(extra.memory_map(at + i * PIECE, PIECE, 0, handle, 0));
		NEED(extra.memory_release(handle));
	}
	NEED(extra.memory_access(at, 2 * PIECE, (struct CUmemAccessDesc_st *)&access, 1));
	return at;
}

static void
address_of_mapping(void)
{
	struct CUctx_st *context = context_make();
	oh_cu_address at = map_two_of_three();
	facts_of("first", context, at, at + 5);
	facts_of("second", context, at, at + PIECE + 5);
	facts_of("unmapped", context, at, at + 2 * PIECE);
}

static void
copy_over_mappings(void)
{
	char *source = NULL, *got;
	context_make();
	struct CUstream_st *stream = stream_make(OH_CU_STREAM_NON_BLOCKING);
	oh_cu_address at = map_two_of_three();
	source = pinned_make(PIECE, 5);
	got = pinned_make(PIECE, 0);
	say("in", cu.copy_in(at + PIECE / 2, source, PIECE, stream));
	say("out", cu.copy_out(got, at + PIECE / 2, PIECE, stream));
	say("sync", cu.stream_sync(stream));
	saw("bytes", "%s", all_are(got, PIECE, 5) ? "right" : "wrong");
	say("into_unmapped", cu.copy_in(at + 2 * PIECE - 16, source, 32, stream));
}

static void
pinning(void)
{
	char *memory = host_make(65536, 0);
	context_make();
	oh_cu_address device = memory_make(65536);
	say("nothing", cu.host_register(memory, 0, OH_CU_HOST_REGISTER_PORTABLE));
	say("null", cu.host_register(NULL, 4096, OH_CU_HOST_REGISTER_PORTABLE));
	say("null_off", cu.host_unregister(NULL));
	say("never", cu.host_unregister(memory));
	say("once", cu.host_register(memory, 32768, OH_CU_HOST_REGISTER_PORTABLE));
	say("twice", cu.host_register(memory, 32768, OH_CU_HOST_REGISTER_PORTABLE));
	say("overlap", cu.host_register(memory + 16384, 32768, OH_CU_HOST_REGISTER_PORTABLE));
	say("beside", cu.host_register(memory + 32768, 32768, OH_CU_HOST_REGISTER_PORTABLE));
	say("off", cu.host_unregister(memory));
	say("off_again", cu.host_unregister(memory));
	say("beside_off", cu.host_unregister(memory + 32768));
	say("again", cu.host_register(memory, 65536, OH_CU_HOST_REGISTER_PORTABLE));
	say("device_memory", cu.host_register((void *)(uintptr_t)device, 4096,
					      OH_CU_HOST_REGISTER_PORTABLE));
}

/* Unmapped memory cannot be pinned. */
static void
pinning_nothing_there(void)
{
	context_make();
	say("unmapped", cu.host_register((void *)0x10000, 4096, OH_CU_HOST_REGISTER_PORTABLE));
}

const struct parity_case parity_memory[] = {
	{"allocation", allocation},
	{"address_of_device", address_of_device},
	{"address_of_host", address_of_host},
	{"address_of_pinned", address_of_pinned},
	{"address_of_pool", address_of_pool},
	{"address_of_mapping", address_of_mapping},
	{"copy_over_mappings", copy_over_mappings},
	{"pinning", pinning},
	{"pinning_nothing_there", pinning_nothing_there},
	{NULL, NULL},
};
