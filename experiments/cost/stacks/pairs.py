"""Times pairs of allocation and free like pairs.c, from Python through ctypes.

usage: pairs.py DEPTH PAIRS

Prints "NS at best": the CPU time of a pair in the fastest of 50 parts.
"""
import ctypes
import sys
import time

PARTS = 50

cuda = ctypes.CDLL("libcuda.so.1")
allocate, free = cuda.cuMemAlloc_v2, cuda.cuMemFree_v2
pointer = ctypes.c_uint64()
out, size = ctypes.byref(pointer), ctypes.c_size_t(4096)


def part(count):
    start = time.thread_time_ns()
    for _ in range(count):
        allocate(out, size)
        free(pointer)
    return (time.thread_time_ns() - start) / count


def pairs(count):
    return min(part(count // PARTS) for _ in range(PARTS))


def deeper(depth, count):
    return deeper(depth - 1, count) if depth > 0 else pairs(count)


def main():
    depth, count = int(sys.argv[1]), int(sys.argv[2])
    device, context = ctypes.c_int(), ctypes.c_void_p()
    cuda.cuInit(0)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    cuda.cuCtxSetCurrent(context)
    # Real drivers split chunks into small allocations; one that is in use keeps the chunk.
    allocate(ctypes.byref(ctypes.c_uint64()), size)
    deeper(depth, count // 10)
    print(f"{deeper(depth, count):.1f} at best")


main()
