/* One library that looks like a CUDA driver, like PyTorch's libc10 and like a Python interpreter. */

#define FUNCTION(name) \
	int name(long a, long b) \
	{ \
		return a ? (int)(a + b) : -1; \
	}

FUNCTION(cuInit)
FUNCTION(cuMemAlloc_v2)
FUNCTION(cuMemFree_v2)
FUNCTION(cuMemAllocAsync)
FUNCTION(cuMemCreate)
FUNCTION(cuLaunchKernel)
FUNCTION(_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE)
FUNCTION(_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE)

/* Names of a driver that point to one function. */
int cuMemFree(long a, long b) __attribute__((alias("cuMemFree_v2")));

char _PyRuntime[64] __attribute__((section(".PyRuntime"))) = "xdebugpy";
unsigned long Py_Version = 0x030c00f0;
long PyCode_Type[4] = { 1 };
const char version[] = "3.9.2 (default, Feb 28 2021, 17:03:44)";
