#!/usr/bin/env python3
"""Compares what cuCtxSetLimit changes with the free memory of the GPU before and after.

usage: limits.py --vramscope PATH [--out DIR]

A program without a framework creates a context, then sets the heap of `malloc`, the buffer of `printf` and the stack of GPU
threads, one after the other, and reads the free memory of the GPU (cuMemGetInfo) around each call. `vramscope explain --json`
has to show each limit with its value, and the change that the program saw lies within the bounds. No other process may use the
GPU. Exits with status 1 otherwise.

Output: `| limit | value | own change | reported | bounds | precision | within |`
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = """
import ctypes, json, time
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)
def free():
    bytes_free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(bytes_free), ctypes.byref(total))
    return bytes_free.value
call("cuInit", 0)
context = ctypes.c_void_p()
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
time.sleep(2)
rows = {}
for name, limit, value in (("malloc_heap", 2, 512 << 20), ("printf_fifo", 1, 64 << 20), ("stack", 0, 16384)):
    before = free()
    call("cuCtxSetLimit", limit, ctypes.c_size_t(value))
    time.sleep(2.5)
    rows[name] = (value, before - free())
print("OWN", json.dumps(rows), flush=True)
time.sleep(3)
"""

# The driver reports whole pages.
TOLERANCE = 2 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    out = options.out or pathlib.Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    program = out / "limits_program.py"
    program.write_text(PROGRAM)
    command = [options.vramscope, "explain", "--json", "--", sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    own = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("OWN ")]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not own or not lines:
        print(f"FAILED ({done.returncode})\n{done.stdout[-500:]}\n{done.stderr[-1500:]}")
        return 1
    own = json.loads(own[0][4:])
    (out / "limits.json").write_text(lines[-1])
    reported = {limit["limit"]: limit for process in json.loads(lines[-1])["processes"] for limit in process["limits"]}
    passed = True
    print("| limit | value | own change | reported | bounds | precision | within |")
    print("|---|---:|---:|---:|---|---|---|")
    for name, (value, change) in own.items():
        found = reported.get(name)
        if found is None:
            print(f"| {name} | {value} | {change} | missing | | | NO |")
            passed = False
            continue
        within = found["min_bytes"] - TOLERANCE <= change <= found["max_bytes"] + TOLERANCE and found["value"] == value
        passed &= within
        print(f"| {name} | {value} | {change} | {found['bytes']} | {found['min_bytes']} to {found['max_bytes']} "
              f"| {found['precision']} | {'yes' if within else 'NO'} |")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
