/* The look-alike driver's ranges of addresses into which memory is mapped in pieces. One mapping a
 * piece of memory, at its whole size; two views of the same memory are not imitated.
 */
#include "fake.h"

#include <stdlib.h>

#define GRANULARITY ((size_t)2 << 20)

oh_cu_result
cuMemAddressReserve(oh_cu_address *address, size_t bytes, size_t alignment, oh_cu_address wanted,
		    unsigned long long flags)
{
	(void)wanted;
	ENTER();
	oh_cu_result code = fake_ready();
	if (code == OH_CU_SUCCESS && (bytes == 0 || bytes % GRANULARITY || flags))
		code = OH_CU_ERROR_INVALID_VALUE;
	if (code == OH_CU_SUCCESS)
		code = fake_block_make(&fake.devices[0], bytes,
				       alignment > GRANULARITY ? alignment : GRANULARITY,
				       FAKE_RANGE, NULL, address);
	LEAVE(code);
}

oh_cu_result
cuMemAddressFree(oh_cu_address address, size_t bytes)
{
	ENTER_UNDO();
	struct fake_block *block = fake_block_at(address, FAKE_RANGE);
	if (!block || block->bytes != bytes || block->maps)
		LEAVE_UNDO(OH_CU_ERROR_INVALID_VALUE);
	fake_block_drop(fake_device_of(address), block);
	LEAVE_UNDO(OH_CU_SUCCESS);
}

oh_cu_result
cuMemCreate(unsigned long long *handle, size_t bytes,
	    const struct CUmemAllocationProp_st *properties, unsigned long long flags)
{
	const struct extra_memory *wanted = (const struct extra_memory *)properties;
	ENTER();
	oh_cu_result code = fake_ready();
	if (code != OH_CU_SUCCESS)
		LEAVE(code);
	if (bytes == 0 || bytes % GRANULARITY || flags || wanted->type != 1 ||
	    wanted->location.type != 1 || wanted->location.id >= fake.device_count)
		LEAVE(OH_CU_ERROR_INVALID_VALUE);
	struct fake_device *device = &fake.devices[wanted->location.id];
	struct fake_memory *made = calloc(1, sizeof *made);
	if (!made || bytes > device->total - device->used) {
		free(made);
		LEAVE(OH_CU_ERROR_OUT_OF_MEMORY);
	}
	*made = (struct fake_memory){device, bytes, 1};
	device->used += bytes;
	*handle = (unsigned long long)(uintptr_t)made;
	LEAVE(OH_CU_SUCCESS);
}

static void
memory_unref(struct fake_memory *memory)
{
	if (--memory->references > 0)
		return;
	memory->device->used -= memory->bytes;
	free(memory);
}

oh_cu_result
cuMemRelease(unsigned long long handle)
{
	ENTER_UNDO();
	memory_unref((struct fake_memory *)(uintptr_t)handle);
	LEAVE_UNDO(fake_ready());
}

oh_cu_result
cuMemMap(oh_cu_address address, size_t bytes, size_t offset, unsigned long long handle,
	 unsigned long long flags)
{
	struct fake_memory *memory = (struct fake_memory *)(uintptr_t)handle;
	ENTER();
	struct fake_block *block = fake_block_of(address);
	struct fake_device *device = fake_device_of(address);
	if (!block || block->kind != FAKE_RANGE || offset || flags || bytes != memory->bytes ||
	    memory->device != device)
		LEAVE(OH_CU_ERROR_INVALID_VALUE);
	uint64_t at = address - (oh_cu_address)(uintptr_t)device->view;
	struct fake_map *map = calloc(1, sizeof *map);
	if (!map || block->bytes - (at - block->offset) < bytes) {
		free(map);
		LEAVE(OH_CU_ERROR_INVALID_VALUE);
	}
	*map = (struct fake_map){block->maps, memory, at, bytes, 0};
	block->maps = map;
	memory->references++;
	LEAVE(OH_CU_SUCCESS);
}

oh_cu_result
cuMemUnmap(oh_cu_address address, size_t bytes)
{
	ENTER_UNDO();
	struct fake_block *block = fake_block_of(address);
	struct fake_device *device = fake_device_of(address);
	int found = 0;
	if (!block || block->kind != FAKE_RANGE)
		LEAVE_UNDO(OH_CU_ERROR_INVALID_VALUE);
	uint64_t at = address - (oh_cu_address)(uintptr_t)device->view;
	for (struct fake_map **m = &block->maps; *m;) {
		struct fake_map *map = *m;
		if (map->offset < at || map->offset + map->bytes > at + bytes) {
			m = &map->next;
			continue;
		}
		*m = map->next;
		memory_unref(map->memory);
		free(map);
		found = 1;
	}
	LEAVE_UNDO(found ? OH_CU_SUCCESS : OH_CU_ERROR_INVALID_VALUE);
}

oh_cu_result
cuMemSetAccess(oh_cu_address address, size_t bytes, const struct CUmemAccessDesc_st *access,
	       size_t count)
{
	const struct extra_access *wanted = (const struct extra_access *)access;
	ENTER();
	struct fake_block *block = fake_block_of(address);
	struct fake_device *device = fake_device_of(address);
	if (!block || block->kind != FAKE_RANGE || count != 1)
		LEAVE(OH_CU_ERROR_INVALID_VALUE);
	uint64_t at = address - (oh_cu_address)(uintptr_t)device->view;
	for (struct fake_map *map = block->maps; map; map = map->next)
		if (map->offset >= at && map->offset + map->bytes <= at + bytes)
			map->access = wanted->flags == 3;
	LEAVE(OH_CU_SUCCESS);
}
