/* Holds a number of live allocations, then makes pairs of allocation and free.
 *
 * usage: growth COUNT PAIRS distinct|same
 *
 * Prints a word and waits for a line after each of them: "ready" before the first driver call,
 * "begun" after the first pair, "held" with COUNT allocations, "NS ns per pair" after the pairs.
 * Linked with the driver, real or simulated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long u64;
int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuDevicePrimaryCtxRetain(u64 *, int);
int cuCtxSetCurrent(u64);
int cuMemAlloc_v2(u64 *, unsigned long);
int cuMemFree_v2(u64);

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static void print_and_wait(const char *text)
{
	puts(text);
	fflush(stdout);
	for (int read = getchar(); read != '\n'; read = getchar())
		if (read == EOF)
			exit(0);
}

/* The only allocation site, so that there is one call stack. */
__attribute__((noinline)) static u64 allocate(unsigned long bytes)
{
	u64 pointer;

	if (cuMemAlloc_v2(&pointer, bytes))
		exit(1);
	return pointer;
}

static void pair(void)
{
	if (cuMemFree_v2(allocate(4096)))
		exit(1);
}

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 1000;
	long pairs = argc > 2 ? atol(argv[2]) : 1000;
	int distinct = argc > 3 && !strcmp(argv[3], "distinct");
	char text[64];
	int device;
	u64 context;
	double start;

	print_and_wait("ready");
	if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
	    cuCtxSetCurrent(context))
		return 1;
	pair();
	print_and_wait("begun");
	for (long i = 0; i < count; i++)
		allocate(4096 + (distinct ? i : 0));
	print_and_wait("held");
	start = now();
	for (long i = 0; i < pairs; i++)
		pair();
	snprintf(text, sizeof(text), "%.1f ns per pair", pairs ? (now() - start) / pairs : 0.0);
	print_and_wait(text);
	return 0;
}
