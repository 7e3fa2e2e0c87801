/* A program with many allocation sites, whose memory changes all the time.
 *
 * usage: sites FIRST COUNT PERIOD_MS: sites FIRST to FIRST + COUNT - 1 of 16384, each a different call stack. Allocates at
 * every site, then frees and allocates again at one of them per period, with another size. */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

typedef unsigned long long u64;

static int (*allocate)(u64 *, unsigned long);
static u64 left(int level, int code, unsigned long bytes);

static __attribute__((noinline)) u64 right(int level, int code, unsigned long bytes)
{
	u64 pointer = 0;

	if (level == 0)
		return allocate(&pointer, bytes) ? 0 : pointer;
	if (code & 1)
		pointer = right(level - 1, code >> 1, bytes);
	else
		pointer = left(level - 1, code >> 1, bytes);
	return pointer;
}

static __attribute__((noinline)) u64 left(int level, int code, unsigned long bytes)
{
	u64 pointer = 0;

	if (level == 0)
		return allocate(&pointer, bytes) ? 0 : pointer;
	if (code & 1)
		pointer = right(level - 1, code >> 1, bytes);
	else
		pointer = left(level - 1, code >> 1, bytes);
	return pointer;
}

int main(int argc, char **argv)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned), (*get)(int *, int), (*retain)(u64 *, int), (*set)(u64), (*release)(u64);
	int device, first, count, period;
	u64 context, *pointers;

	if (argc < 4 || !driver)
		return 1;
	first = atoi(argv[1]), count = atoi(argv[2]), period = atoi(argv[3]);
	init = dlsym(driver, "cuInit");
	get = dlsym(driver, "cuDeviceGet");
	retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
	set = dlsym(driver, "cuCtxSetCurrent");
	allocate = dlsym(driver, "cuMemAlloc_v2");
	release = dlsym(driver, "cuMemFree_v2");
	pointers = calloc(count, sizeof(*pointers));
	if (!pointers || init(0) || get(&device, 0) || retain(&context, device) || set(context))
		return 1;
	srand(first);
	for (int site = 0; site < count; site++)
		pointers[site] = left(14, first + site, 1UL << 20);
	for (int site = 0;; site = (site + 1) % count) {
		usleep(period * 1000);
		release(pointers[site]);
		pointers[site] = left(14, first + site, (1UL + rand() % 64) << 20);
	}
}
