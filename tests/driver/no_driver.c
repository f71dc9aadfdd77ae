/* What the CUDA back end says where there is no driver, or not enough of one. Which of the two is
 * tried depends on the libcuda.so.1 that the loader finds. */
#include "harness.h"

#include "memory/ops.h"

#include <dlfcn.h>

static void
check_refused(const char *words, const char *more)
{
	struct onehop_error error = {0};
	struct oh_device *device = NULL;
	CHECK_EQ(oh_memory_cuda.count(), 0);
	for (int i = 0; i < 2; i++) {
		error = (struct onehop_error){0};
		CHECK_EQ(oh_memory_cuda.open(0, &device, &error), ONEHOP_NO_DEVICE);
		CHECK_EQ(error.status, ONEHOP_NO_DEVICE);
		CHECK_HOLDS(error.message, words);
		CHECK_HOLDS(error.message, more);
		CHECK_HOLDS(error.remedy, "NVIDIA driver");
	}
	CHECK(!device);
	CHECK_EQ(oh_memory_cuda.open(0, &device, NULL), ONEHOP_NO_DEVICE);
}

TEST(without_a_driver_there_is_no_device_and_the_sentence_says_so)
{
	if (dlopen("libcuda.so.1", RTLD_NOW))
		SKIP("there is a libcuda.so.1");
	check_refused("no NVIDIA driver", "libcuda.so.1");
}

TEST(a_driver_that_lacks_a_function_is_refused_by_its_name)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library || dlsym(library, "cuDriverGetVersion"))
		SKIP("there is no libcuda.so.1 that lacks a function");
	check_refused("libcuda.so.1 has no cuDriverGetVersion", "CUDA 2.2");
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
