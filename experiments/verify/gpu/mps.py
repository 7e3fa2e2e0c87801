#!/usr/bin/env python3
"""Compares the traced memory of clients of one MPS server with the clients' own figures.

usage: mps.py --vramscope PATH [--out DIR]

Starts an MPS control daemon with its own directories, a trace of all processes, and clients with different allocators:
PyTorch, PyTorch with expandable segments, and CuPy. Each client prints what its allocator reserved. Prints one row per
client: own figure, traced bytes, driver-reported bytes. Exits with status 1 if a traced value differs.

Output: `| client | pid | own bytes | traced bytes | driver bytes | equal |`
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

TORCH = """
import torch
keep = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (3, 40, 700, 1300, 900)]
torch.cuda.synchronize()
print("OWN", torch.cuda.memory_reserved(), flush=True)
input()
"""

CUPY = """
import cupy
keep = [cupy.empty(n << 20, dtype=cupy.uint8) for n in (3, 40, 600)]
cupy.cuda.Device().synchronize()
print("OWN", cupy.get_default_memory_pool().total_bytes(), flush=True)
input()
"""

CLIENTS = {
    "PyTorch": (TORCH, {}),
    "PyTorch, expandable segments": (TORCH, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "CuPy": (CUPY, {}),
}


def start(name, environment):
    program, extra = CLIENTS[name]
    client = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              env={**environment, **extra})
    for line in client.stdout:
        if line.startswith("OWN "):
            return client, int(line.split()[1])
    return client, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    out = options.out or pathlib.Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    pipes = tempfile.mkdtemp()
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": pipes}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True)
    report = out / "mps.json"
    trace = subprocess.Popen([options.vramscope, "trace", "--json", "--interval", "500ms", "--force", "-o", str(report)])
    failed = False
    clients = []
    try:
        time.sleep(3)
        clients = [(name, *start(name, environment)) for name in CLIENTS]
        time.sleep(4)
        last = json.loads(report.read_text().splitlines()[-1])
        processes = {process["pid"]: process for process in last["processes"]}
        print("| client | pid | own bytes | traced bytes | driver bytes | equal |")
        print("|---|---|---:|---:|---:|---|")
        for name, client, own in clients:
            process = processes.get(client.pid, {})
            traced = process.get("live_bytes")
            driver = sum(device.get("driver_bytes", 0) for device in process.get("devices", []))
            failed |= own is None or own != traced
            print(f"| {name} | {client.pid} | {own} | {traced} | {driver} | {own == traced} |")
    finally:
        for _, client, _ in clients:
            client.kill()
        trace.terminate()
        trace.wait()
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment, check=False)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
