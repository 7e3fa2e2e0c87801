// Times two loops: launches of an empty kernel, and cudaMalloc with cudaFree.
//
// usage: loops [LAUNCHES [PAIRS]]
//
// Prints one line of JSON: nanoseconds per iteration of each loop, and the total number of calls,
// including the warm-up calls.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

__global__ void empty()
{
}

static void check(cudaError_t result, const char *what)
{
	if (result == cudaSuccess)
		return;
	fprintf(stderr, "loops: %s: %s\n", what, cudaGetErrorString(result));
	exit(1);
}

static double now()
{
	using namespace std::chrono;
	return duration<double, std::nano>(steady_clock::now().time_since_epoch()).count();
}

static void launch(long times)
{
	for (long i = 0; i < times; i++)
		empty<<<1, 1>>>();
	check(cudaGetLastError(), "launch");
	check(cudaDeviceSynchronize(), "wait");
}

static void allocate(long times)
{
	for (long i = 0; i < times; i++) {
		void *memory;
		check(cudaMalloc(&memory, 2048), "cudaMalloc");
		check(cudaFree(memory), "cudaFree");
	}
}

int main(int argc, char **argv)
{
	const long launches = argc > 1 ? atol(argv[1]) : 100000;
	const long pairs = argc > 2 ? atol(argv[2]) : 5000;
	const long first = 1000; // warm-up: the first calls load code, and their stacks are new to a tracer

	check(cudaFree(nullptr), "start");
	launch(first);
	allocate(first);
	const double begin = now();
	launch(launches);
	const double middle = now();
	allocate(pairs);
	const double end = now();
	printf("{\"program\": \"loops\", \"launches\": %ld, \"pairs\": %ld, "
	       "\"ns_per_launch\": %.1f, \"ns_per_pair\": %.1f}\n",
	       launches + first, pairs + first, (middle - begin) / launches,
	       (end - middle) / pairs);
	return 0;
}
