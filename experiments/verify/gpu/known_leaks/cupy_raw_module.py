"""Builds a CuPy module with the step number in its source, and keeps it."""
import cupy
from steps import FIXED, steps

modules = []


def build(number):
    source = f'extern "C" __global__ void add(int* x) {{ *x += {number}; }} __device__ int table[{1 << 16}];'
    module = cupy.RawModule(code=source, options=("--std=c++11",))
    kernel = module.get_function("add")  # leaks here
    modules.append((module, kernel))
    return kernel


data = cupy.zeros(1, dtype=cupy.int32)
fixed = build(0)
for step in steps():
    kernel = fixed if FIXED else build(step)  # leaks here
    kernel((1,), (1,), (data,))  # leaks here
