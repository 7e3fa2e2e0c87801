"""Times pairs of allocation and free in the simulated PyTorch allocator, below a Python stack of a given depth.

usage: pairs.py DEPTH PAIRS
"""
import ctypes
import sys
import time

ctypes.CDLL("libc10.so", mode=ctypes.RTLD_GLOBAL)
torch = ctypes.CDLL("libc10_cuda.so")
torch.sim_torch_malloc.restype = ctypes.c_uint64
torch.sim_torch_malloc.argtypes = [ctypes.c_int, ctypes.c_uint64]
torch.sim_torch_free.argtypes = [ctypes.c_uint64]


def pairs(depth, count):
    if depth > 1:
        return pairs(depth - 1, count)
    malloc, free = torch.sim_torch_malloc, torch.sim_torch_free
    free(malloc(0, 4096))
    start = time.perf_counter_ns()
    for _ in range(count):
        free(malloc(0, 4096))
    return (time.perf_counter_ns() - start) / count


if __name__ == "__main__":
    assert torch.sim_torch_select(0) == 1
    pairs(int(sys.argv[1]), 200)
    time.sleep(0.5)
    print(f"{pairs(int(sys.argv[1]), int(sys.argv[2])):.0f} ns per pair")
