// Calls the driver API directly: physical memory mapped twice, references, pools, graphs with
// memory nodes, contexts. Prints its own account at each hold. Link with -lcuda.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <sys/time.h>
#include <unistd.h>

#define CHECK(call)                                                                                \
	do {                                                                                       \
		CUresult error = (call);                                                           \
		if (error != CUDA_SUCCESS) {                                                       \
			const char *name = "?";                                                    \
			cuGetErrorName(error, &name);                                              \
			fprintf(stderr, "%s: %s\n", #call, name);                                  \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static void hold(const char *what, const char *account)
{
	timeval now;

	gettimeofday(&now, nullptr);
	printf("HOLD {\"what\": \"%s\", \"time\": %ld.%06ld, %s}\n", what, now.tv_sec, now.tv_usec,
	       account);
	fflush(stdout);
	usleep(1500000);
}

static char text[256];

static const char *account_of(const char *kind, unsigned long long bytes)
{
	snprintf(text, sizeof(text), "\"kind\": \"%s\", \"bytes\": %llu", kind, bytes);
	return text;
}

static void physical()
{
	CUmemAllocationProp prop = {};
	CUmemGenericAllocationHandle handle, again;
	CUmemAccessDesc access = {};
	CUdeviceptr first, second;
	size_t grain;

	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = 0;
	CHECK(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	size_t bytes = 5 * grain;
	CHECK(cuMemCreate(&handle, bytes, &prop, 0));
	CHECK(cuMemAddressReserve(&first, bytes, 0, 0, 0));
	CHECK(cuMemAddressReserve(&second, bytes, 0, 0, 0));
	CHECK(cuMemMap(first, bytes, 0, handle, 0));
	CHECK(cuMemMap(second, bytes, 0, handle, 0));
	access.location = prop.location;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	CHECK(cuMemSetAccess(first, bytes, &access, 1));
	hold("mapped twice", account_of("physical", bytes));
	CHECK(cuMemRetainAllocationHandle(&again, (void *)first));
	CHECK(cuMemRelease(handle));
	CHECK(cuMemUnmap(first, bytes));
	hold("unmapped once", account_of("physical", bytes));
	CHECK(cuMemRelease(again));
	hold("released, one mapping left", account_of("physical", bytes));
	CHECK(cuMemUnmap(second, bytes));
	hold("gone", account_of("physical", 0));
	CHECK(cuMemAddressFree(first, bytes));
	CHECK(cuMemAddressFree(second, bytes));
}

static void graph()
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {};
	CUgraph graph;
	CUgraphNode node;
	CUgraphExec exec;
	CUstream stream;
	cuuint64_t used;

	params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	params.poolProps.location.id = 0;
	params.bytesize = 3 << 20;
	CHECK(cuStreamCreate(&stream, 0));
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &params));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	hold("instantiated", account_of("graph", 0));
	CHECK(cuGraphLaunch(exec, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
	printf("graph memory in use, as reported by the driver: %llu\n", (unsigned long long)used);
	hold("launched", account_of("graph", params.bytesize));
	CHECK(cuMemFreeAsync(params.dptr, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuDeviceGraphMemTrim(0));
	hold("freed and trimmed", account_of("graph", 0));
	CHECK(cuGraphExecDestroy(exec));
	CHECK(cuGraphDestroy(graph));
}

static void captured()
{
	CUgraph graph;
	CUgraphExec exec;
	CUstream stream;
	CUdeviceptr pointer;

	CHECK(cuStreamCreate(&stream, 0));
	CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuMemAllocAsync(&pointer, 1 << 20, stream));
	CHECK(cuMemFreeAsync(pointer, stream));
	CHECK(cuStreamEndCapture(stream, &graph));
	hold("captured, not memory", account_of("async", 0));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (int i = 0; i < 10; i++)
		CHECK(cuGraphLaunch(exec, stream));
	CHECK(cuStreamSynchronize(stream));
	hold("launched ten times", account_of("graph", 0));
}

static void pools()
{
	CUmemPoolProps props = {};
	CUmemoryPool pool;
	CUdeviceptr one, two;
	cuuint64_t used;

	props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	props.location.id = 0;
	CHECK(cuMemPoolCreate(&pool, &props));
	CHECK(cuMemAllocFromPoolAsync(&one, 10 << 20, pool, 0));
	CHECK(cuMemAllocAsync(&two, 7 << 20, 0));
	CHECK(cuStreamSynchronize(0));
	CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
	hold("two pools", account_of("async", used + (7 << 20)));
	CHECK(cuMemFreeAsync(one, 0));
	CHECK(cuMemFree(two));
	CHECK(cuStreamSynchronize(0));
	hold("both empty", account_of("async", 0));
	CHECK(cuMemPoolDestroy(pool));
}

static void contexts()
{
	CUcontext own;
	CUdeviceptr pointer;

	CHECK(cuCtxCreate(&own, nullptr, 0, 0));
	CHECK(cuMemAlloc(&pointer, 9 << 20));
	hold("in a context of its own", account_of("device", 9 << 20));
	CHECK(cuCtxDestroy(own));
	hold("its context destroyed", account_of("device", 0));
}

int main()
{
	CUcontext primary;
	CUdevice device;
	CUuuid uuid;

	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDeviceGetUuid_v2(&uuid, device));
	CHECK(cuDevicePrimaryCtxRetain(&primary, device));
	CHECK(cuCtxSetCurrent(primary));
	physical();
	graph();
	captured();
	pools();
	contexts();
	return 0;
}
