#!/usr/bin/env python3
"""Compares what vramscope reports about allocators inside processes with their own figures, to the byte.

usage: allocators.py --vramscope PATH [--only NAME] [--out DIR]

Each program runs under `vramscope trace --allocators --json`, allocates and frees for a while, writes the figures of its
allocator to a file, and holds its memory for some seconds. One report of that time must have the same figures. Programs:
PyTorch, CuPy's pool, JAX with and without preallocation, and RMM, whose pool is reported as not visible. A program whose
framework is not installed is skipped and named. Needs root and a GPU; each program takes less than two minutes.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# Writes the figures and keeps the memory for several reports.
WRITE = """
import json, os, time
def write(**figures):
    with open(os.environ["FIGURES"], "a") as out:
        print(json.dumps(figures), file=out)
    time.sleep(2.5)
"""

JAX = """
import jax, jax.numpy as jnp, random
def own():
    stats = jax.local_devices()[0].memory_stats()
    write(allocated_bytes=stats["bytes_in_use"], peak_bytes=stats["peak_bytes_in_use"],
          **({"reserved_bytes": stats["pool_bytes"]} if "pool_bytes" in stats else {}))
choice, kept = random.Random(1), []
for step in range(400):
    if kept and choice.random() < 0.4:
        kept.pop(choice.randrange(len(kept)))
    else:
        kept.append(jax.device_put(jnp.ones((choice.choice([1, 100, 5000, 1_000_000]),))))
jax.block_until_ready(kept)
own()
f = jax.jit(lambda a: jnp.tanh(a @ a))
kept.append(f(jnp.ones((2048, 2048))).block_until_ready())
own()
kept.clear()
own()
"""

PROGRAMS = {
    "pytorch": ("torch", "pytorch", {}, """
import torch, random
choice, kept = random.Random(1), []
for step in range(2000):
    if kept and choice.random() < 0.4:
        kept.pop(choice.randrange(len(kept)))
    else:
        kept.append(torch.empty(choice.choice([100, 5000, 3_000_000]), device="cuda"))
def own():
    write(allocated_bytes=torch.cuda.memory_allocated(), reserved_bytes=torch.cuda.memory_reserved())
own()
kept.clear()
own()
"""),
    "cupy": ("cupy", "cupy", {}, """
import cupy, random
pool, choice, kept = cupy.get_default_memory_pool(), random.Random(1), []
for step in range(2000):
    if kept and choice.random() < 0.4:
        kept.pop(choice.randrange(len(kept)))
    else:
        kept.append(cupy.empty(choice.choice([100, 5000, 3_000_000]), dtype=cupy.float32))
def own():
    write(allocated_bytes=pool.used_bytes(), reserved_bytes=pool.total_bytes())
own()
kept.append((cupy.ones((1024, 1024)) @ cupy.ones((1024, 1024))).sum())
cupy.cuda.Device().synchronize()
own()
kept.clear()
own()
pool.free_all_blocks()
own()
"""),
    "jax_preallocated": ("jax", "xla", {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}, JAX),
    "jax": ("jax", "xla", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, JAX),
    "rmm": ("rmm", "rmm", {}, """
import rmm
rmm.reinitialize(pool_allocator=True, initial_pool_size=1 << 30, maximum_pool_size=1 << 30)
kept = [rmm.DeviceBuffer(size=size) for size in (100, 5000, 3_000_000)]
write(opaque_bytes=1 << 30)
"""),
}


def is_installed(module):
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def run(vramscope, name, out):
    """Returns the program's figures and the reports."""
    _, _, variables, program = PROGRAMS[name]
    path, figures = out / f"allocate_{name}.py", out / f"{name}.figures"
    path.write_text(WRITE + program)
    figures.write_text("")
    environment = {**os.environ, **variables, "FIGURES": str(figures)}
    reports = out / f"{name}.jsonl"
    command = [vramscope, "trace", "--allocators", "--json", "-i", "500ms", "-o", str(reports), "--force", "--",
               sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    if done.returncode != 0:
        print(f"exit {done.returncode}: {done.stdout[-500:]}\n{done.stderr[-1500:]}")
        return None
    return ([json.loads(line) for line in figures.read_text().splitlines()],
            [json.loads(line) for line in reports.read_text().splitlines() if line.startswith("{")])


def views(reports, allocator):
    """What reports have about an allocator, in order: values of the pools added up."""
    for report in reports:
        for process in report["processes"]:
            for view in process["allocators"]:
                if view["allocator"] != allocator:
                    continue
                pools = view["pools"]
                keys = ("allocated_bytes", "reserved_bytes", "peak_bytes")
                sums = {key: sum(pool[key] for pool in pools) for key in keys}
                yield {**sums, "opaque_bytes": view.get("opaque_bytes"), "exact": view["exact"],
                       "reason": view.get("unavailable_reason"), "live_bytes": process["live_bytes"]}


def compare(vramscope, name, out):
    found = run(vramscope, name, out)
    if not found:
        return False
    figures, reports = found
    seen = list(views(reports, PROGRAMS[name][1]))
    passed = bool(figures) and bool(seen)
    print("| own figures | equal in a report | exact | nearest report |\n|---|---|---|---|")
    for own in figures:
        equal = [view for view in seen if all(view[key] == value for key, value in own.items())]
        nearest = equal[0] if equal else min(
            seen, key=lambda view: sum(abs((view[key] or 0) - value) for key, value in own.items()), default={})
        exact = bool(equal) and (equal[0]["exact"] or "opaque_bytes" in own)
        passed &= exact
        print(f"| {own} | {'yes' if equal else 'NO'} | {'yes' if exact else 'NO'} | {nearest} |")
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--only", action="append", choices=sorted(PROGRAMS))
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    out = options.out or pathlib.Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in options.only or PROGRAMS:
        print(f"\n## {name}")
        if not is_installed(PROGRAMS[name][0]):
            print("not installed")
        elif not compare(options.vramscope, name, out):
            failed.append(name)
    print(f"\nfailed: {', '.join(failed) or 'none'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
