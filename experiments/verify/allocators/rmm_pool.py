"""Runs the memory pool of a published RMM on any CUDA driver, also the simulated one, and prints what RMM's own
statistics say as JSON lines: {"used_bytes": …, "blocks": …, "total_bytes": …}.

    python -m venv venv && venv/bin/pip install librmm-cu12==26.10.0 nvidia-cuda-runtime-cu12 nvidia-cuda-nvcc-cu12
    LD_LIBRARY_PATH=target/release/sim vramscope trace --allocators --json -- \
        venv/bin/python experiments/verify/allocators/rmm_pool.py
"""

import ctypes
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

PACKAGES = Path(sysconfig.get_path("purelib"))
INCLUDES = ("librmm/include", "librmm/include/rapids", "rapids_logger/include", "nvidia/cuda_runtime/include",
            "nvidia/cuda_nvcc/include")
LIBRARIES = ("librmm/lib64", "rapids_logger/lib64")


def build(directory):
    """Compiles the pool against the headers and libraries of the installed packages."""
    library = Path(directory) / "rmm_pool.so"
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE",
               "-o", library, Path(__file__).with_suffix(".cpp")]
    command += [f"-I{PACKAGES / path}" for path in INCLUDES]
    command += [f"-L{PACKAGES / path}" for path in LIBRARIES]
    command += [f"-Wl,-rpath,{PACKAGES / path}" for path in LIBRARIES]
    subprocess.run([*command, "-lrmm", "-lrapids_logger"], check=True)
    return library


def load(library):
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    pool = ctypes.CDLL(library)
    for name in ("allocate", "used", "blocks", "total"):
        getattr(pool, f"pool_{name}").restype = ctypes.c_uint64
    pool.pool_begin.argtypes = pool.pool_allocate.argtypes = [ctypes.c_uint64]
    pool.pool_free.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    return pool


def report(pool):
    print(json.dumps({"used_bytes": pool.pool_used(), "blocks": pool.pool_blocks(), "total_bytes": pool.pool_total(),
                      "pid": os.getpid()}), flush=True)
    time.sleep(float(os.environ.get("HOLD_S", "3")))


def keep_buffer(pool, size):
    """The line that the report names."""
    return pool.pool_allocate(size), size


def main():
    with tempfile.TemporaryDirectory() as directory:
        pool = load(build(directory))
    if not pool.pool_begin(64 << 20):
        sys.exit("the CUDA driver does not work")
    held, choice = [], random.Random(int(os.environ.get("SEED", "1")))
    for _ in range(int(os.environ.get("STEPS", "500"))):
        if held and choice.random() < 0.4:
            pool.pool_free(*held.pop(choice.randrange(len(held))))
        else:
            held.append(keep_buffer(pool, 256 * choice.choice([1, 3, 20, 400, 12_000])))
    report(pool)
    for block in held:
        pool.pool_free(*block)
    report(pool)
    pool.pool_end()


main()
