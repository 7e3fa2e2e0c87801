#!/usr/bin/env python3
"""Explains the driver-reported memory of real programs, and checks that the parts add up.

usage: explain.py --vramscope PATH [--only NAME] [--out DIR]

Each program runs under `vramscope explain --json`: PyTorch (plain, CUDA graphs, torch.compile), JAX, CuPy, Triton and NCCL
with one rank. For each a table is printed: the parts, their precision, and the share that is measured, bounded, estimated
and not explained. A program whose framework is not installed is skipped and named.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

# The program keeps its state until the driver was queried several times.
HOLD = "\nimport time; time.sleep(4)\n"

PROGRAMS = {
    "torch": """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
x = torch.randn(256, 2048, device="cuda")
for _ in range(5):
    model(x).sum().backward()
torch.cuda.synchronize()
""",
    "torch_graphs": """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
graphs = []
for size in (1, 2, 4, 8, 16, 32, 64, 128):
    x = torch.randn(size, 1024, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        model(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = model(x)
    graph.replay()
    graphs.append((graph, x, y))
torch.cuda.synchronize()
""",
    "torch_compile": """
import torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
step = torch.compile(model)
for size in (8, 64):
    step(torch.randn(size, 1024, device="cuda")).sum().backward()
torch.cuda.synchronize()
""",
    "jax": """
import os
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.1"
import jax, jax.numpy as jnp
f = jax.jit(lambda a: jnp.tanh(a @ a).sum())
print(f(jnp.ones((4096, 4096))).block_until_ready())
""",
    "cupy": """
import cupy
a = cupy.random.rand(4096, 4096, dtype=cupy.float32)
b = a @ a
c = cupy.fft.fft(b)
cupy.cuda.Device().synchronize()
""",
    "triton": """
import torch, triton, triton.language as tl
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)
x = torch.rand(1 << 24, device="cuda")
out = torch.empty_like(x)
for block in (128, 256, 512, 1024):
    add[(triton.cdiv(x.numel(), block),)](x, x, out, x.numel(), BLOCK=block)
torch.cuda.synchronize()
""",
    "nccl": """
import os, torch, torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
x = torch.ones(1 << 24, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
""",
}

REQUIRES = {"jax": "jax", "cupy": "cupy", "triton": "triton"}


def is_installed(name):
    module = REQUIRES.get(name, "torch")
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def size(value):
    return f"{value / (1 << 20):,.1f} MiB"


def explain(vramscope, name, out):
    # Not the name of a module that it imports.
    program = out / f"explain_{name}.py"
    program.write_text(PROGRAMS[name] + HOLD)
    command = [vramscope, "explain", "--json", "--", sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        print(f"\n## {name}: FAILED ({done.returncode})\n{done.stdout[-500:]}\n{done.stderr[-1500:]}")
        return False
    (out / f"{name}.json").write_text(lines[-1])
    processes = json.loads(lines[-1])["processes"]
    if not processes:
        print(f"\n## {name}: the driver reported no memory")
        return False
    passed = True
    for process in processes:
        passed &= table(name, process)
    return passed


def table(name, process):
    driver = process["driver_bytes"]
    total = sum(part["bytes"] for part in process["parts"])
    print(f"\n## {name}: {process['program']}, driver {driver} bytes ({size(driver)}), traced {process['traced_bytes']}")
    print("| part | bytes | share | precision | bounds |")
    print("|---|---:|---:|---|---|")
    for part in process["parts"]:
        bounds = f"{size(part['min_bytes'])} to {size(part['max_bytes'])}" if part["precision"] == "bounded" else ""
        print(f"| {part['description']} | {part['bytes']} | {100 * part['bytes'] / driver:.2f} % "
              f"| {part['precision'] if part['part'] != 'rest' else ''} | {bounds} |")
    shares = {key: 100 * process[f"{key}_bytes"] / driver for key in ("measured", "bounded", "estimated", "unexplained")}
    print(", ".join(f"{key} {share:.2f} %" for key, share in shares.items()))
    context = sum(part["bytes"] for part in process["parts"] if part["part"] == "context")
    beyond = 100 * process["unexplained_bytes"] / max(driver - context, 1)
    print(f"not explained beyond the context: {beyond:.2f} %")
    for cost in process["objects"][:6]:
        image = f", image {size(cost['image_bytes_each'])}" if "image_bytes_each" in cost else ""
        print(f"  {cost['kind']} x{cost['live']} {size(cost['bytes_each'])} each "
              f"({size(cost['min_bytes_each'])} to {size(cost['max_bytes_each'])}{image}) at {cost['location']}")
    if total != driver:
        print(f"FAILED: the parts add up to {total}")
    return total == driver


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
        if not is_installed(name):
            print(f"\n## {name}: not installed")
        elif not explain(options.vramscope, name, out):
            failed.append(name)
    print(f"\nfailed: {', '.join(failed) or 'none'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
