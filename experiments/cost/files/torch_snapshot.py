#!/usr/bin/env python3
"""Measures the leak analysis of a large PyTorch snapshot, against plain Python.

usage: torch_snapshot.py [--binary FILE] [--mebibytes 512] [--keep FILE] [--rounds 3]

Writes a snapshot of a simulated training run as PyTorch does (stacks of about 40 shared frames, one list of frames
for each allocation and each free), then computes the leaks by stack with `vramscope report FILE leaks
--format json`, and with `pickle.load` and a loop. Prints elapsed and CPU seconds, their ratios, the peak memory of
both, and whether the results agree. Needs no GPU.
"""
import argparse
import gc
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


def frames_and_stacks(rng, frames=3000, stacks=1500):
    """Returns stacks whose frames are shared dictionaries, as PyTorch's symbolizer creates them."""
    all_frames = []
    for number in range(frames):
        if number % 3:
            name = f"at::native::(anonymous namespace)::kernel_{number}<at::Tensor, c10::Scalar const&>"
            all_frames.append({"name": name, "filename": "??", "line": 0})
        else:
            all_frames.append({"name": f"forward_{number}", "line": number % 900 + 1,
                          "filename": f"/srv/model/layers/module_{number % 97}.py"})
    return [[rng.choice(all_frames) for _ in range(rng.randint(20, 60))] for _ in range(stacks)]


def write_snapshot(path, mebibytes):
    """Writes a snapshot of about this size and returns its number of trace entries."""
    sys.path.insert(0, os.path.join(ROOT, "crates", "formats", "tests", "torch"))
    from allocator import Allocator

    rng = random.Random(7)
    stacks = frames_and_stacks(rng)
    device = Allocator()
    live, step = [], 0
    # An entry takes 233 bytes of pickle in a real file, and 209 here.
    entries = mebibytes * (1 << 20) // 208
    while len(device.trace) < entries:
        step += 1
        for _ in range(rng.randint(40, 120)):
            size = rng.choice((rng.randint(1, 4096), rng.randint(4096, 1 << 20), rng.randint(1 << 20, 32 << 20)))
            live.append(device.malloc(size, rng.choice((0, 0, 0, 0x5581)), list(rng.choice(stacks))))
        rng.shuffle(live)
        keep = min(len(live), 60 + step // 200)
        while len(live) > keep:
            device.free(live.pop(), list(rng.choice(stacks)))
    snapshot = {"segments": device.snapshot_segments(), "device_traces": [device.trace],
                "allocator_settings": device.settings(), "external_annotations": []}
    with open(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    return len(device.trace)


def leaks_in_python(path):
    """Loads the whole file, matches frees with allocations, and sums the live memory by stack."""
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    sizes = {block["address"]: block["size"] for segment in snapshot["segments"]
             for block in segment["blocks"] if block["state"] == "active_allocated"}
    live = {}
    for trace in snapshot["device_traces"]:
        for entry in trace:
            action = entry["action"]
            if action == "alloc":
                live[entry["addr"]] = entry
            elif action == "free_requested":
                live.pop(entry["addr"], None)
    by_stack = {}
    for address, entry in live.items():
        stack = tuple((frame["name"], frame["filename"], frame["line"]) for frame in entry.get("frames", ()))
        by_stack[stack] = by_stack.get(stack, 0) + sizes.get(address, entry["size"])
    return {"held_bytes": sum(by_stack.values()), "held_allocations": len(live), "stacks": len(by_stack)}


def timed(command):
    """Runs a command and returns CPU seconds, elapsed seconds, peak memory in MiB, and its output."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed")
    cpu = usage.ru_utime + usage.ru_stime
    return cpu, time.perf_counter() - start, usage.ru_maxrss / 1024, output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "vramscope"))
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--keep", help="keep the snapshot in this file; an existing file is used")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-python", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_python:
        print(json.dumps(leaks_in_python(options.in_python)))
        # Excludes the shutdown of the interpreter from the measurement.
        sys.stdout.flush()
        os._exit(0)

    with tempfile.TemporaryDirectory() as directory:
        path = options.keep or os.path.join(directory, "snapshot.pickle")
        if not os.path.exists(path):
            # In its own process: the measured ones must not inherit its memory.
            if child := os.fork():
                os.waitpid(child, 0)
            else:
                gc.disable()
                print(f"{write_snapshot(path, options.mebibytes)} entries", flush=True)
                os._exit(0)
        size = os.path.getsize(path) / (1 << 20)
        ours = [options.binary, "report", path, "leaks", "--format", "json"]
        theirs = [sys.executable, os.path.abspath(__file__), "--in-python", path]
        our_runs, their_runs = [], []
        for _ in range(options.rounds):
            our_runs.append(timed(ours))
            their_runs.append(timed(theirs))
        # The run that was disturbed least.
        cpu, seconds, memory, result = min(our_runs)
        python_cpu, python_seconds, python_memory, python_result = min(their_runs)
        result, python_result = json.loads(result), json.loads(python_result)
        same = all(result[key] == python_result[key] for key in ("held_bytes", "held_allocations"))
        print(f"file       {size:8.0f} MiB")
        print(f"vramscope  {seconds:8.2f} s  {cpu:8.2f} s CPU  {memory:8.0f} MiB ({memory / size:.2f} x file)")
        print(f"python     {python_seconds:8.2f} s  {python_cpu:8.2f} s CPU  "
              f"{python_memory:8.0f} MiB ({python_memory / size:.2f} x file)")
        print(f"ratio      {python_seconds / seconds:8.1f}    {python_cpu / cpu:8.1f}")
        print("the results agree" if same else f"THE RESULTS DIFFER: {result} {python_result}")
        sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
