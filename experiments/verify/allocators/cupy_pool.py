"""Runs the memory pool of a published CuPy on any CUDA driver, also the simulated one, and prints what
the pool says about itself as JSON lines: {"used_bytes": …, "total_bytes": …}.

CuPy contains the CUDA runtime, which needs functions of the driver that the simulated one lacks. The
calls of the runtime that the pool needs are redirected to the driver here; the code of the pool is that
of the wheel.

    python -m venv venv && venv/bin/pip install cupy-cuda12x==13.6.0
    LD_LIBRARY_PATH=target/release/sim vramscope trace --allocators --json -- \
        venv/bin/python experiments/verify/allocators/cupy_pool.py
"""

import ctypes
import json
import os
import random
import subprocess
import sys
import time

from cupy_backends.cuda.api import runtime

DRIVER = ctypes.CDLL("libcuda.so.1")
PAGE = os.sysconf("SC_PAGE_SIZE")
KEPT = []


def check(result, name):
    if result:
        sys.exit(f"{name} failed with {result}")


def begin():
    check(DRIVER.cuInit(0), "cuInit")
    context = ctypes.c_void_p()
    check(DRIVER.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    check(DRIVER.cuCtxSetCurrent(context), "cuCtxSetCurrent")


def malloc(to, size):
    address = ctypes.c_uint64()
    result = DRIVER.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    to[0] = address.value
    return result


def free(address):
    return DRIVER.cuMemFree_v2(ctypes.c_uint64(address or 0))


def zero(to):
    to[0] = 0
    return 0


def one(to):
    to[0] = 1
    return 0


def capture_status(_stream, to, *_rest):
    to[0] = 0
    return 0


INT, SIZE, POINTER = ctypes.POINTER(ctypes.c_int), ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint64)
REDIRECTED = {
    "cudaGetDevice": (zero, (INT,)),
    "cudaGetDeviceCount": (one, (INT,)),
    "cudaSetDevice": (lambda _device: 0, (ctypes.c_int,)),
    "cudaDeviceSynchronize": (lambda: 0, ()),
    "cudaMalloc": (malloc, (POINTER, SIZE)),
    "cudaFree": (free, (ctypes.c_void_p,)),
    "cudaStreamIsCapturing": (capture_status, (ctypes.c_void_p, INT)),
}


def redirect(name, function, arguments):
    """Makes a function of the runtime jump to a function of this program."""
    libc = ctypes.CDLL(None)
    for module in (runtime.__file__, sys.modules["cupy.cuda.memory"].__file__):
        base = 0
        with open("/proc/self/maps", encoding="utf-8") as maps:
            starts = [int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(module)]
        base = min(starts, default=0)
        listing = subprocess.run(["nm", module], capture_output=True, text=True, check=True).stdout
        rows = [row.split() for row in listing.splitlines()]
        found = [int(row[0], 16) for row in rows if len(row) == 3 and row[2] == name]
        for offset in found:
            target = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(function)
            KEPT.append(target)
            to = ctypes.cast(target, ctypes.c_void_p).value
            # mov rax, target; jmp rax
            code = b"\x48\xb8" + to.to_bytes(8, "little") + b"\xff\xe0"
            at = base + offset
            first = at // PAGE * PAGE
            check(libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(2 * PAGE), 7), "mprotect")
            ctypes.memmove(at, code, len(code))


def report(pool):
    print(json.dumps({"used_bytes": pool.used_bytes(), "total_bytes": pool.total_bytes(),
                      "pid": os.getpid()}), flush=True)


def keep_array(size):
    """The line that the report names."""
    return cupy.cuda.alloc(size)


def main():
    begin()
    for name, (function, arguments) in REDIRECTED.items():
        redirect(name, function, arguments)
    pool = cupy.get_default_memory_pool()
    held, choice = [], random.Random(int(os.environ.get("SEED", "1")))
    for _ in range(int(os.environ.get("STEPS", "500"))):
        if held and choice.random() < 0.4:
            held.pop(choice.randrange(len(held)))
        else:
            held.append(keep_array(choice.choice([100, 700, 5000, 100_000, 3_000_000])))
    report(pool)
    time.sleep(float(os.environ.get("HOLD_S", "3")))
    held.clear()
    pool.free_all_blocks()
    report(pool)
    time.sleep(float(os.environ.get("HOLD_S", "3")))


import cupy

main()
