// A pool of a published RMM over memory of the CUDA driver, for rmm_pool.py.
//
// The runtime that is linked into librmm.so requires NVIDIA's driver. The pool calls it only in its
// upstream resource, which is replaced here, and in the code that this file instantiates, for which
// it has functions of its own: no stream does any work.

#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <memory>
#include <rmm/mr/callback_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

extern "C" {
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) { *event = nullptr; return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamGetId(cudaStream_t, unsigned long long *id) { *id = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t) { return "error"; }
const char *cudaGetErrorString(cudaError_t) { return "error"; }
}

static const cuda::stream_ref stream{cudaStream_t{}};
static const std::size_t alignment = 256;
static std::unique_ptr<rmm::mr::pool_memory_resource> pool;
static std::unique_ptr<rmm::mr::statistics_resource_adaptor> statistics;

static void *allocate(std::size_t bytes, cuda::stream_ref, void *)
{
	CUdeviceptr address;

	if (cuMemAlloc(&address, bytes) != CUDA_SUCCESS)
		throw rmm::bad_alloc("cuMemAlloc failed");
	return reinterpret_cast<void *>(address);
}

static void deallocate(void *address, std::size_t, cuda::stream_ref, void *)
{
	cuMemFree(reinterpret_cast<CUdeviceptr>(address));
}

extern "C" {
bool pool_begin(std::size_t initial)
{
	CUcontext context;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
		return false;
	rmm::mr::callback_memory_resource upstream{allocate, deallocate, nullptr, nullptr};
	pool = std::make_unique<rmm::mr::pool_memory_resource>(upstream, initial);
	statistics = std::make_unique<rmm::mr::statistics_resource_adaptor>(*pool);
	return true;
}

void *pool_allocate(std::size_t bytes) { return statistics->allocate(stream, bytes, alignment); }
void pool_free(void *address, std::size_t bytes) { statistics->deallocate(stream, address, bytes, alignment); }
std::size_t pool_used() { return statistics->get_bytes_counter().value; }
std::size_t pool_blocks() { return statistics->get_allocations_counter().value; }
std::size_t pool_total() { return pool->pool_size(); }

void pool_end()
{
	statistics.reset();
	pool.reset();
}
}
