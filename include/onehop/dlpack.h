/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/dlpack.h: pieces of a buffer as tensors that other libraries take, by DLPack.
 *
 * The structs have the layout of DLPack 1.x: struct onehop_dl_managed is its DLManagedTensorVersioned,
 * struct onehop_dl_managed_old its DLManagedTensor of before 1.0 (include/dlpack/dlpack.h of
 * dmlc/dlpack, versions 1.0 to 1.3). They are declared here under names of our own, so that a program
 * may include both headers and cast.
 *
 * An exported tensor belongs to who has it, until that calls its deleter. Each keeps its buffer's
 * memory, after onehop_buffer_free() too, and what of the runtime the memory needs, after
 * onehop_runtime_destroy() too: the last deleter gives both back. A deleter may be called on any
 * thread, at any time until the process is gone, and takes no lock of the caller's language: it knows
 * nothing of Python. In a forked child it gives back the struct and nothing else.
 */
#ifndef ONEHOP_DLPACK_H
#define ONEHOP_DLPACK_H

#include <onehop/buffer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* device_type */
enum onehop_dl_device { ONEHOP_DL_CPU = 1, ONEHOP_DL_CUDA = 2 };

/* DLTensor, with its device and type written out. */
struct onehop_dl_tensor {
	void *data; /* of the first element; NULL if there is none */
	int32_t device_type;
	int32_t device_id;
	int32_t ndim;
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
	int64_t *shape;
	int64_t *strides; /* in elements; never NULL unless ndim is 0 */
	uint64_t byte_offset; /* 0 */
};

struct onehop_dl_managed {
	uint32_t major;
	uint32_t minor;
	void *context;
	void (*deleter)(struct onehop_dl_managed *self);
	uint64_t flags; /* ONEHOP_EXPORT_READ_ONLY and ONEHOP_EXPORT_COPIED, DLPack's own bits */
	struct onehop_dl_tensor tensor;
};

struct onehop_dl_managed_old {
	struct onehop_dl_tensor tensor;
	void *context;
	void (*deleter)(struct onehop_dl_managed_old *self);
};

enum onehop_export_flags {
	ONEHOP_EXPORT_READ_ONLY = 1 << 0, /* who takes it must not write */
	ONEHOP_EXPORT_COPIED = 1 << 1,    /* nobody else has these bytes */
	/* A struct onehop_dl_managed_old, for those who know no other. It has no flags: READ_ONLY
	 * with it is INVALID_ARGUMENT. */
	ONEHOP_EXPORT_OLD = 1 << 2,
};

/* Makes a tensor, contiguous and row-major, of the bytes from offset on.
 *
 * dtype: as a file names it: "BOOL", "U8" to "U64", "I8" to "I64", "F16", "BF16", "F32", "F64",
 * "C64", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4".
 * Others (the block types of GGUF) are UNSUPPORTED_DATA: hand out their bytes as "U8". shape: rank
 * dimensions in elements; copied. F4 elements go in twos, as one element of two lanes, where the last
 * dimension is even, as torch has them: that dimension is halved then.
 *
 * *managed is a struct onehop_dl_managed *, or what flags (enum onehop_export_flags) say instead; its
 * deleter ends it. Memory of the caller's (onehop_buffer_wrap) has to stay until the buffer's exports
 * (onehop_buffer_query) are 0. Nothing is copied and no stream is waited for: what a transfer has
 * landed every stream sees, and work that a taker still has under way is the taker's to order before
 * it calls the deleter. Fails with INVALID_ARGUMENT, UNSUPPORTED_DATA, NO_MEMORY, FORKED. Any
 * thread. */
ONEHOP_API onehop_status onehop_buffer_export(struct onehop_buffer *buffer, uint64_t offset,
					      const char *dtype, const uint64_t *shape,
					      uint32_t rank, uint32_t flags, void **managed,
					      struct onehop_error *error);

/* For Python, whose PyCapsule carries such a tensor from one library to another. The name of its
 * capsule, by the flags that it was made with: "dltensor_versioned" or "dltensor". Static. */
ONEHOP_API const char *onehop_export_capsule_name(uint32_t flags);

/* The capsule's PyCapsule_Destructor: calls the deleter unless somebody took the tensor, which shows
 * in the capsule's name. In C, since a callback into Python would lose an exception that is on its
 * way, and may not run when the interpreter ends. The GIL is held, as with every destructor. */
ONEHOP_API void onehop_export_capsule_destroy(void *capsule);

#ifdef __cplusplus
}
#endif
#endif
