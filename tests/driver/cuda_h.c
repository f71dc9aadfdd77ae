/* Our declarations of the CUDA driver against the real cuda.h: the type of each function in the
 * version that its row names, constants, results, and the layout of structs. Built only where a
 * cuda.h of CUDA 13.0 or later is found; otherwise it says so. */
#include "extra.h"

#include <stdio.h>

#ifdef HAVE_CUDA_H
#include <cuda.h>
#endif

#if !defined(HAVE_CUDA_H) || CUDA_VERSION < 13000

int
main(void)
{
	printf("1..0 # SKIP no cuda.h of CUDA 13.0 or later was found when this was built\n");
	return 0;
}

#else

#include <cudaTypedefs.h>

static int number, bad;

static void
check(int right, const char *what)
{
	number++;
	bad += !right;
	printf("%s %d - %s\n", right ? "ok" : "not ok", number, what);
}

#define SAME_TYPE(a, b) __builtin_types_compatible_p(a, b)
#define FUNCTION(table)                                                                            \
	static void check_##table##_functions(const struct table *t)
#define CHECK_FUNCTION(field, name, suffix, version, arguments)                                    \
	check(SAME_TYPE(__typeof__(t->field), PFN_##name##_v##version),                            \
	      #name #suffix " has the type of version " #version);
#define CHECK_RESULT(name, value)                                                                  \
	check((int)OH_CU_##name == (int)CUDA_##name, "CUDA_" #name " has its value");
#define CHECK_CONSTANT(ours, theirs) check((int)ours == (int)theirs, #theirs " has its value");

FUNCTION(oh_cuda)
{
	(void)t;
	OH_CUDA_REQUIRED(CHECK_FUNCTION)
	OH_CUDA_OPTIONAL(CHECK_FUNCTION)
}

FUNCTION(extra)
{
	(void)t;
	EXTRA(CHECK_FUNCTION)
}

/* A member's place and size, under two names. */
#define SAME_PLACE(type, member, their_type, their_member)                                         \
	(offsetof(type, member) == offsetof(their_type, their_member) &&                           \
	 sizeof(((type *)0)->member) == sizeof(((their_type *)0)->their_member))

static void
check_layouts(void)
{
	typedef struct oh_cu_copy_attributes ours;
	typedef struct CUmemcpyAttributes_st theirs;
	check(sizeof(CUuuid) == 16, "CUuuid is 16 bytes");
	check(sizeof(ours) == sizeof(theirs) &&
		      SAME_PLACE(ours, source_order, theirs, srcAccessOrder) &&
		      SAME_PLACE(ours, source_hint, theirs, srcLocHint) &&
		      SAME_PLACE(ours, destination_hint, theirs, dstLocHint) &&
		      SAME_PLACE(ours, flags, theirs, flags),
	      "CUmemcpyAttributes has its layout");
	check(sizeof(struct oh_cu_location) == sizeof(CUmemLocation) &&
		      SAME_PLACE(struct oh_cu_location, type, CUmemLocation, type) &&
		      SAME_PLACE(struct oh_cu_location, id, CUmemLocation, id),
	      "CUmemLocation has its layout");
	check(sizeof(struct extra_memory) == sizeof(CUmemAllocationProp) &&
		      SAME_PLACE(struct extra_memory, type, CUmemAllocationProp, type) &&
		      SAME_PLACE(struct extra_memory, location, CUmemAllocationProp, location),
	      "CUmemAllocationProp has its layout");
	check(sizeof(struct extra_access) == sizeof(CUmemAccessDesc) &&
		      SAME_PLACE(struct extra_access, flags, CUmemAccessDesc, flags),
	      "CUmemAccessDesc has its layout");
}

static void
check_constants(void)
{
	OH_CU_RESULTS(CHECK_RESULT)
	CHECK_CONSTANT(OH_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING)
	CHECK_CONSTANT(OH_CU_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE)
	CHECK_CONSTANT(OH_CU_HOST_REGISTER_READ_ONLY, CU_MEMHOSTREGISTER_READ_ONLY)
	CHECK_CONSTANT(OH_CU_DEVICE_READ_ONLY_REGISTER,
		       CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
	CHECK_CONSTANT(OH_CU_MEMORY_HOST, CU_MEMORYTYPE_HOST)
	CHECK_CONSTANT(OH_CU_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE)
	CHECK_CONSTANT(OH_CU_POINTER_CONTEXT, CU_POINTER_ATTRIBUTE_CONTEXT)
	CHECK_CONSTANT(OH_CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
	CHECK_CONSTANT(OH_CU_POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
	CHECK_CONSTANT(OH_CU_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
	CHECK_CONSTANT(OH_CU_POINTER_RANGE_BYTES, CU_POINTER_ATTRIBUTE_RANGE_SIZE)
	CHECK_CONSTANT(OH_CU_SOURCE_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
	CHECK_CONSTANT(OH_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING)
	CHECK_CONSTANT(OH_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED)
}

int
main(void)
{
	check_oh_cuda_functions(NULL);
	check_extra_functions(NULL);
	check_layouts();
	check_constants();
	printf("1..%d\n", number);
	return bad ? 1 : 0;
}

#endif
