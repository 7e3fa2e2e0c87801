// A CUDA program with known allocations: device, pitched, managed and pinned memory, some of it
// freed. Prints its live memory at each `hold`, to be compared with a tracer. Built with nvcc:
// static runtime by default, shared runtime with -cudart shared.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <unistd.h>

#define CHECK(call)                                                                                \
	do {                                                                                       \
		cudaError_t error = (call);                                                        \
		if (error != cudaSuccess) {                                                        \
			fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));             \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

__global__ void touch(char *p)
{
	p[threadIdx.x] = 1;
}

static void hold(const char *what, double seconds)
{
	printf("HOLD %s\n", what);
	fflush(stdout);
	usleep((useconds_t)(seconds * 1e6));
}

int main()
{
	char *device[3], *managed, *pinned, *pitched, *on_thread;
	size_t pitch;

	for (int i = 0; i < 3; i++)
		CHECK(cudaMalloc(&device[i], 8 << 20));
	CHECK(cudaMallocPitch(&pitched, &pitch, 1000, 1000));
	CHECK(cudaMallocManaged(&managed, 4 << 20));
	CHECK(cudaMallocHost(&pinned, 2 << 20));
	touch<<<1, 32>>>(device[0]);
	CHECK(cudaDeviceSynchronize());
	std::thread worker([&] { CHECK(cudaMalloc(&on_thread, 16 << 20)); });
	worker.join();
	printf("device 3 x %d, pitched %zu, managed %d, pinned %d, thread %d\n", 8 << 20, pitch * 1000,
	       4 << 20, 2 << 20, 16 << 20);
	hold("all", 1.5);
	CHECK(cudaFree(device[0]));
	CHECK(cudaFree(device[2]));
	CHECK(cudaFree(on_thread));
	void *too_much = nullptr;
	cudaError_t error = cudaMalloc(&too_much, 4ull << 40);
	printf("4 TiB: %s\n", cudaGetErrorString(error));
	hold("some freed", 1.5);
	return 0;
}
