/* Pieces of a buffer as tensors for others, by DLPack.
 *
 * An export is one allocation: the struct that the taker sees, and its shape and strides. It holds a
 * reference on the buffer and one on the runtime. The deleter is all that the taker calls.
 */
#include "runtime/internal.h"

#include "base/arith.h"

#include <stdlib.h>
#include <string.h>

/* Every type and flag that is used here is in it. */
enum { MAJOR = 1, MINOR = 1 };

/* DLDataTypeCode */
enum code {
	CODE_INT = 0,
	CODE_UINT = 1,
	CODE_FLOAT = 2,
	CODE_BFLOAT = 4,
	CODE_COMPLEX = 5,
	CODE_BOOL = 6,
	CODE_F8_E4M3FN = 10,
	CODE_F8_E4M3FNUZ = 11,
	CODE_F8_E5M2 = 12,
	CODE_F8_E5M2FNUZ = 13,
	CODE_F8_E8M0FNU = 14,
	CODE_F6_E2M3FN = 15,
	CODE_F6_E3M2FN = 16,
	CODE_F4_E2M1FN = 17,
};

struct type {
	const char *name;
	uint8_t code;
	uint8_t bits;
};

static const struct type types[] = {
	{"BOOL", CODE_BOOL, 8},
	{"U8", CODE_UINT, 8},
	{"U16", CODE_UINT, 16},
	{"U32", CODE_UINT, 32},
	{"U64", CODE_UINT, 64},
	{"I8", CODE_INT, 8},
	{"I16", CODE_INT, 16},
	{"I32", CODE_INT, 32},
	{"I64", CODE_INT, 64},
	{"F16", CODE_FLOAT, 16},
	{"BF16", CODE_BFLOAT, 16},
	{"F32", CODE_FLOAT, 32},
	{"F64", CODE_FLOAT, 64},
	{"C64", CODE_COMPLEX, 64},
	{"F8_E4M3", CODE_F8_E4M3FN, 8},
	{"F8_E4M3FNUZ", CODE_F8_E4M3FNUZ, 8},
	{"F8_E5M2", CODE_F8_E5M2, 8},
	{"F8_E5M2FNUZ", CODE_F8_E5M2FNUZ, 8},
	{"F8_E8M0", CODE_F8_E8M0FNU, 8},
	{"F6_E2M3", CODE_F6_E2M3FN, 6},
	{"F6_E3M2", CODE_F6_E3M2FN, 6},
	{"F4", CODE_F4_E2M1FN, 4},
};

struct export
{
	union {
		struct onehop_dl_managed now;
		struct onehop_dl_managed_old old;
	} managed;
	struct onehop_buffer *buffer;
	int64_t numbers[]; /* shape, then strides */
};

static const struct type *
find_type(const char *name)
{
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (strcmp(types[i].name, name) == 0)
			return &types[i];
	return NULL;
}

/* The bytes of a tensor, if it can be one. */
static onehop_status
size_of(const struct type *type, const uint64_t *shape, uint32_t rank, uint64_t *bytes,
	struct onehop_error *error)
{
	uint64_t bits = type->bits;
	int empty = 0, too_large = rank > INT32_MAX;
	for (uint32_t d = 0; d < rank; d++)
		empty |= shape[d] == 0;
	for (uint32_t d = 0; d < rank && !too_large; d++)
		too_large = shape[d] > INT64_MAX || (!empty && oh_mul(bits, shape[d], &bits));
	if (too_large)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "a tensor of %u dimensions is too large to be addressed", rank);
	if (empty)
		bits = 0;
	if (bits % 8) {
		oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%llu bits of %s do not fill whole bytes",
			(unsigned long long)bits, type->name);
		oh_remedy(error, "pass a shape whose elements do");
		return ONEHOP_INVALID_ARGUMENT;
	}
	*bytes = bits / 8;
	return ONEHOP_OK;
}

static void
give_back(struct export *export)
{
	struct onehop_buffer *buffer = export->buffer;
	struct onehop_runtime *runtime = buffer->runtime;
	free(export);
	if (oh_forked(runtime, NULL))
		return;
	oh_buffer_drop(buffer);
	oh_runtime_drop(runtime);
}

static void
delete_now(struct onehop_dl_managed *self)
{
	if (self)
		give_back(self->context);
}

static void
delete_old(struct onehop_dl_managed_old *self)
{
	if (self)
		give_back(self->context);
}

static struct onehop_dl_tensor
describe(struct export *export, uint64_t address, const struct type *type, const uint64_t *shape,
	 uint32_t rank)
{
	const struct oh_rt_device *device = export->buffer->device;
	int on_host = device->ops == &oh_memory_host;
	struct onehop_dl_tensor tensor = {
		.data = (void *)(uintptr_t)address,
		.device_type = on_host ? ONEHOP_DL_CPU : ONEHOP_DL_CUDA,
		.device_id = (int32_t)device->ordinal,
		.ndim = (int32_t)rank,
		.code = type->code,
		.bits = type->bits,
		.lanes = 1,
		.shape = export->numbers,
		.strides = rank ? export->numbers + rank : NULL,
	};
	for (uint32_t d = 0; d < rank; d++)
		tensor.shape[d] = (int64_t)shape[d];
	if (type->code == CODE_F4_E2M1FN && rank && tensor.shape[rank - 1] % 2 == 0) {
		tensor.lanes = 2;
		tensor.shape[rank - 1] /= 2;
	}
	/* One that is empty may have any: its dimensions need not fit when multiplied. */
	uint64_t stride = 1;
	for (uint32_t d = rank; d-- > 0;) {
		tensor.strides[d] = (int64_t)stride;
		stride *= address ? (uint64_t)tensor.shape[d] : 1;
	}
	return tensor;
}

onehop_status
onehop_buffer_export(struct onehop_buffer *buffer, uint64_t offset, const char *dtype,
		     const uint64_t *shape, uint32_t rank, uint32_t flags, void **managed,
		     struct onehop_error *error)
{
	const uint32_t marks = ONEHOP_EXPORT_READ_ONLY | ONEHOP_EXPORT_COPIED;
	char shown[OH_SHOWN];
	uint64_t bytes = 0;
	if (!buffer || !dtype || (!shape && rank) || !managed)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "buffer, dtype, shape or managed is NULL");
	if (flags & ~(marks | ONEHOP_EXPORT_OLD))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "flags 0x%x hold unknown bits", flags);
	if (flags & ONEHOP_EXPORT_OLD && flags & ONEHOP_EXPORT_READ_ONLY) {
		oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			"DLPack before 1.0 cannot say that a tensor is read-only");
		oh_remedy(error, "ask for version 1.0 or newer, or for a copy");
		return ONEHOP_INVALID_ARGUMENT;
	}
	const struct type *type = find_type(dtype);
	if (!type) {
		oh_fail(error, ONEHOP_UNSUPPORTED_DATA, "DLPack has no type for %s",
			oh_show(shown, dtype, strlen(dtype)));
		oh_remedy(error, "hand out its bytes as U8");
		return ONEHOP_UNSUPPORTED_DATA;
	}
	onehop_status status = size_of(type, shape, rank, &bytes, error);
	if (!status)
		status = oh_buffer_check_range(buffer, offset, bytes, error);
	if (status)
		return status;
	size_t size = sizeof(struct export) + 2 * sizeof(int64_t) * rank;
	struct export *export = malloc(size);
	if (!export)
		return oh_fail_no_memory(error, size, "an exported tensor");
	export->buffer = buffer;
	struct onehop_dl_tensor tensor =
		describe(export, bytes ? buffer->address + offset : 0, type, shape, rank);
	if (flags & ONEHOP_EXPORT_OLD)
		export->managed.old = (struct onehop_dl_managed_old){tensor, export, delete_old};
	else
		export->managed.now = (struct onehop_dl_managed){MAJOR, MINOR, export, delete_now,
								 flags & marks, tensor};
	oh_runtime_hold(buffer->runtime);
	oh_buffer_hold(buffer);
	*managed = &export->managed;
	return ONEHOP_OK;
}

const char *
onehop_export_capsule_name(uint32_t flags)
{
	return flags & ONEHOP_EXPORT_OLD ? "dltensor" : "dltensor_versioned";
}

/* Python's own, there if this library was loaded into Python; declared as its headers do. */
extern int PyCapsule_IsValid(void *capsule, const char *name) __attribute__((weak));
extern void *PyCapsule_GetPointer(void *capsule, const char *name) __attribute__((weak));

void
onehop_export_capsule_destroy(void *capsule)
{
	const char *now = onehop_export_capsule_name(0);
	const char *old = onehop_export_capsule_name(ONEHOP_EXPORT_OLD);
	if (!PyCapsule_IsValid || !PyCapsule_GetPointer)
		return;
	/* GetPointer sets an exception only where IsValid is false. */
	if (PyCapsule_IsValid(capsule, now))
		delete_now(PyCapsule_GetPointer(capsule, now));
	else if (PyCapsule_IsValid(capsule, old))
		delete_old(PyCapsule_GetPointer(capsule, old));
}
