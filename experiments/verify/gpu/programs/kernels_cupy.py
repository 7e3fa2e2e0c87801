"""Launches kernels that CuPy compiles at run time, counted by PyTorch's profiler."""
from counted import counted


def work():
    import cupy

    x = cupy.arange(100_000, dtype=cupy.float32)
    kernel = cupy.RawKernel(
        'extern "C" __global__ void twice(float* x) { x[blockIdx.x * 256 + threadIdx.x] *= 2; }', "twice")
    for _ in range(60):
        y = cupy.sin(x) + x * 2
        kernel((390,), (256,), (x,))
        y.sum()
    cupy.cuda.Device().synchronize()


counted(work)
