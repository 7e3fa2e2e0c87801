#!/usr/bin/env python3
"""Compares `--allocators` with PyTorch's own statistics on a real GPU, and measures its cost.

usage: torch_live.py [--rounds N] [--steps N] [-o RESULT.json] VRAMSCOPE

Needs root, a GPU, and PyTorch for CUDA in the Python that runs this.

1. Cost: training steps of a small transformer, alternating not traced; traced with --allocators=off, =auto (after its memory
   stopped to grow), =totals and =full; and with PyTorch's own recorder. Compared is the minimum of the median steps of each
   round.
2. Values: a program that holds tensors, frees some of them and prints `torch.cuda.memory_stats()` is traced from its
   start. Allocated, reserved and inactive split bytes are compared with the JSON report, with plain and with
   expandable segments; then with the backend cudaMallocAsync, and with a tracer that is attached late.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

TRAIN = r'''
import statistics, sys, time
import torch

steps, settle, recorder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "recorder"
if recorder:
    torch.cuda.memory._record_memory_history(max_entries=1_000_000)
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(d_model=512, nhead=8, dim_feedforward=2048, batch_first=True)
model = torch.nn.TransformerEncoder(layer, num_layers=6).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = torch.randn(16, 128, 512, device="cuda")

def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()

end = time.monotonic() + settle
for number in range(1_000_000):
    step()
    torch.cuda.synchronize()
    if number >= 20 and time.monotonic() > end:
        break
before = torch.cuda.memory_stats()["allocation.all.allocated"]
times = []
for _ in range(steps):
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - start)
blocks = (torch.cuda.memory_stats()["allocation.all.allocated"] - before) / steps
print(f"STEP {statistics.median(times) * 1e6:.1f} {blocks:.1f}", flush=True)
'''

HOLD = r'''
import json, os, sys, time
import torch

late = "late" in sys.argv
kept = []

def layer(size):
    return torch.empty(size, device="cuda")

def build(count):
    for number in range(count):
        kept.append(layer(1000 * (number % 50 + 1)))
        kept.append(layer(400_000 + number * 1000))

build(40)
if late:
    print("LOADED", flush=True)
    sys.stdin.readline()
build(60)
del kept[10::3]
big = layer(100 << 20)
del big
small = layer(300)
torch.cuda.synchronize()
names = ["allocated_bytes.all.current", "reserved_bytes.all.current", "inactive_split_bytes.all.current",
         "active_bytes.all.current", "allocation.all.current", "allocated_bytes.all.peak"]
stats = torch.cuda.memory_stats()
print("STATS " + json.dumps({name: stats.get(name) for name in names}), flush=True)
time.sleep(3)
# Skip the shutdown of the interpreter, which would free the tensors before the last report.
os._exit(0)
'''


def trace(vramscope, torch_options):
    if torch_options is None:
        return []
    return [vramscope, "trace", "--json", "--interval", "1s", *torch_options, "--"]


# Longer than the tensors of a process are tracked after its memory stopped to grow.
SETTLE_SECONDS = 25


def step_time(vramscope, mode, torch_options, script, steps):
    settle = SETTLE_SECONDS if mode == "auto" else 0
    command = [*trace(vramscope, torch_options), sys.executable, script, str(steps), str(settle), mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("STEP ")]
    if not lines:
        sys.exit(f"{' '.join(command)}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    _, micros, blocks = lines[-1].split()
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    lost = 0
    if reports:
        caches = [process["allocators"][0] for process in reports[-1]["processes"] if process["allocators"]]
        lost = sum(cache["lost_events"] for cache in caches)
    return float(micros), float(blocks), lost


def cost(options, directory):
    script = os.path.join(directory, "train.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(TRAIN)
    modes = {"none": None, "off": ["--allocators=off"], "auto": [], "totals": ["--allocators=totals"],
             "sampled": ["--allocators=sampled"], "full": ["--allocators=full"],
             "recorder": None}
    results = {name: [] for name in modes}
    lost = dict.fromkeys(modes, 0)
    blocks = 0.0
    for _ in range(options.rounds):
        for name, torch_options in modes.items():
            micros, blocks, missing = step_time(options.vramscope, name, torch_options, script, options.steps)
            results[name].append(micros)
            lost[name] += missing
            print(f"{name}: {micros:.1f} us per step, {missing} lost", flush=True)
    least = {name: min(times) for name, times in results.items()}
    return {
        "blocks_per_step": blocks,
        "micros": results,
        "least": least,
        "ratio_to_off": {name: least[name] / least["off"] for name in least},
        "ratio_to_none": {name: least[name] / least["none"] for name in least},
        "lost": lost,
    }


def last_with_cache(path, pid):
    """Returns a process from the last report in which it still runs."""
    found = None
    with open(path, encoding="utf-8") as file:
        for line in file:
            for process in json.loads(line)["processes"]:
                if process["pid"] == pid and process["allocators"] and not process["exited"]:
                    found = process
    return found


def compare(stats, cache):
    device = cache["devices"][0]
    pairs = {
        "allocated": (stats["allocated_bytes.all.current"], device["allocated_bytes"]),
        "seen": (stats["allocated_bytes.all.current"], device["tracked_bytes"]),
        "reserved": (stats["reserved_bytes.all.current"], device["reserved_bytes"]),
        "blocks": (stats["allocation.all.current"], device["live_blocks"]),
        "peak": (stats["allocated_bytes.all.peak"], device["peak_bytes"]),
        "inactive_split": (stats["inactive_split_bytes.all.current"], device.get("fragmented_bytes")),
    }
    return {name: {"pytorch": a, "vramscope": b, "same": a == b} for name, (a, b) in pairs.items()}


def hold(options, directory, environment, late=False):
    script = os.path.join(directory, "hold.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(HOLD)
    reports = os.path.join(directory, "reports.jsonl")
    common = ["trace", "--json", "--interval", "500ms", "--allocators=full", "--force", "-o", reports]
    environment = dict(os.environ, **environment)
    program = [sys.executable, script, *(["late"] if late else [])]
    if late:
        target = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        assert target.stdout.readline().strip() == "LOADED"
        tracer = subprocess.Popen([options.vramscope, *common, "-p", str(target.pid)], stderr=subprocess.PIPE)
        time.sleep(2)
        target.stdin.write("go\n")
        target.stdin.flush()
        output = target.stdout.read()
        target.wait()
        tracer.wait(timeout=60)
        pid = target.pid
    else:
        done = subprocess.run([options.vramscope, *common, "--", *program], capture_output=True, text=True, check=False, env=environment)
        output = done.stdout + done.stderr
        with open(reports, encoding="utf-8") as file:
            last = json.loads(file.readlines()[-1])
        pid = max(last["processes"], key=lambda process: process["allocations_total"])["pid"]
    lines = [line for line in output.splitlines() if line.startswith("STATS ")]
    if not lines:
        sys.exit(f"no statistics: {output[-2000:]}")
    process = last_with_cache(reports, pid)
    with open(reports, encoding="utf-8") as file:
        last = json.loads(file.readlines()[-1])
    sites = [
        [f"{frame['function']}:{frame['line']}" for frame in site["frames"] if frame["language"] == "python"]
        for site in last.get("tensor_sites", [])
    ]
    return json.loads(lines[-1][6:]), process, sites


def values(options, directory):
    results = {}
    for name, environment in {
        "plain": {},
        "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    }.items():
        stats, process, sites = hold(options, directory, environment)
        results[name] = {"statistics": compare(stats, process["allocators"][0]), "exact": process["allocators"][0]["exact"],
                         "torch": process["allocators"][0], "python_sites": sites[:5]}
    stats, process, _ = hold(options, directory, {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    results["async"] = {"unavailable_reason": process["allocators"][0].get("unavailable_reason"), "live_bytes_by_kind": process["live_bytes_by_kind"]}
    stats, process, _ = hold(options, directory, {}, late=True)
    device = process["allocators"][0]["pools"][0]
    results["late"] = {
        "allocated": stats["allocated_bytes.all.current"] == device["allocated_bytes"],
        "reserved": stats["reserved_bytes.all.current"] == device["reserved_bytes"],
        "seen_is_less": device["tracked_bytes"] < device["allocated_bytes"],
        "exact": process["allocators"][0]["exact"],
    }
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("-o", "--output")
    parser.add_argument("vramscope")
    options = parser.parse_args()
    options.vramscope = os.path.abspath(options.vramscope)
    with tempfile.TemporaryDirectory() as directory:
        results = {"values": values(options, directory)}
        print(json.dumps(results["values"], indent=1), flush=True)
        results["cost"] = cost(options, directory)
    print(json.dumps(results["cost"], indent=1))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    wrong = [
        f"{case}: {name}"
        for case in ("plain", "expandable")
        for name, one in results["values"][case]["statistics"].items()
        # PyTorch does not count split bytes of expandable segments.
        if not one["same"] and (case, name) != ("expandable", "inactive_split")
    ]
    sys.exit("different values: " + ", ".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
