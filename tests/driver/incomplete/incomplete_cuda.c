/* A libcuda.so.1 that starts and has nothing else, as a stub or a very old driver might. */
#include "memory/cuda/driver.h"

__attribute__((visibility("default"))) oh_cu_result cuInit(unsigned int flags);

oh_cu_result
cuInit(unsigned int flags)
{
	return flags ? OH_CU_ERROR_INVALID_VALUE : OH_CU_SUCCESS;
}
