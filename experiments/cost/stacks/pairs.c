/* Times pairs of allocation and free, below a call stack of a given depth.
 *
 * usage: pairs DEPTH PAIRS
 *
 * Prints "NS ns per pair, NS of them on a processor, NS at best": the second is CPU time, which is less if
 * other programs run on the same CPU, and the third that of the fastest of 50 parts. Linked with the
 * driver, real or simulated. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long u64;
int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuDevicePrimaryCtxRetain(u64 *, int);
int cuCtxSetCurrent(u64);
int cuMemAlloc_v2(u64 *, unsigned long);
int cuMemFree_v2(u64);

enum { PARTS = 50 };

struct times {
	double wall, processor, best;
};

static double now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static double part(int count)
{
	double start = now(CLOCK_THREAD_CPUTIME_ID);

	for (int i = 0; i < count; i++) {
		u64 pointer;

		if (cuMemAlloc_v2(&pointer, 4096) || cuMemFree_v2(pointer))
			exit(1);
	}
	return (now(CLOCK_THREAD_CPUTIME_ID) - start) / count;
}

static struct times pairs(int count)
{
	struct times times = { now(CLOCK_MONOTONIC), 0, 0 };

	for (int i = 0; i < PARTS; i++) {
		double time = part(count / PARTS);

		times.processor += time / PARTS;
		if (i == 0 || time < times.best)
			times.best = time;
	}
	times.wall = (now(CLOCK_MONOTONIC) - times.wall) / (count / PARTS * PARTS);
	return times;
}

__attribute__((noinline)) static struct times deeper(int depth, int count)
{
	struct times time = depth > 0 ? deeper(depth - 1, count) : pairs(count);

	__asm__ volatile("" ::: "memory");
	return time;
}

int main(int argc, char **argv)
{
	int depth = argc > 1 ? atoi(argv[1]) : 10;
	int count = argc > 2 ? atoi(argv[2]) : 20000;
	int device;
	u64 context, kept;

	if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
	    cuCtxSetCurrent(context))
		return 1;
	/* Real drivers split chunks into small allocations; one that is in use keeps the chunk. */
	if (cuMemAlloc_v2(&kept, 4096))
		return 1;
	deeper(depth, count / 10);
	struct times time = deeper(depth, count);
	printf("%.1f ns per pair, %.1f of them on a processor, %.1f at best\n", time.wall, time.processor,
	       time.best);
	return 0;
}
