// Known leaks, to compare with compute-sanitizer: three of device memory (one of them pitched, one
// on another thread), one managed, one array; pinned memory is freed.
#include <cstdio>
#include <cstdlib>
#include <thread>

#define CHECK(call)                                                                                \
	do {                                                                                       \
		cudaError_t error = (call);                                                        \
		if (error != cudaSuccess) {                                                        \
			fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));             \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

int main()
{
	char *kept, *freed, *pitched, *managed, *pinned, *on_thread, *ordered;
	size_t pitch;
	cudaArray_t array;
	cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();

	CHECK(cudaMalloc(&kept, 1234567));
	CHECK(cudaMalloc(&freed, 7654321));
	CHECK(cudaMallocPitch(&pitched, &pitch, 1000, 100));
	CHECK(cudaMallocManaged(&managed, 65536));
	CHECK(cudaMallocHost(&pinned, 4096));
	CHECK(cudaMallocArray(&array, &format, 128, 64));
	CHECK(cudaMallocAsync(&ordered, 1 << 20, 0));
	CHECK(cudaStreamSynchronize(0));
	CHECK(cudaFreeAsync(ordered, 0));
	std::thread worker([&] { CHECK(cudaMalloc(&on_thread, 333333)); });
	worker.join();
	CHECK(cudaFree(freed));
	CHECK(cudaFreeHost(pinned));
	CHECK(cudaDeviceSynchronize());
	printf("leaked: device 1234567 + %zu + 333333, managed 65536, array 32768\n", pitch * 100);
	return 0;
}
