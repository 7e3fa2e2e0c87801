#!/usr/bin/env python3
"""How long a large PyTorch snapshot takes to answer "what was never freed?", here and in Python.

usage: torch_snapshot.py [--binary FILE] [--mebibytes 512] [--keep FILE] [--rounds 3]

Writes a snapshot of a simulated training run (as PyTorch writes them: stacks of some 40 shared frames,
one list of frames for each allocation and each free), then asks both for the leaks by stack:
`vramscope report FILE --analysis leaks --format json`, and `pickle.load` with a loop. Prints seconds, CPU
seconds, their ratios, the peak memory of both, and whether the answers agree. Needs no GPU.
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
ROOT = os.path.dirname(os.path.dirname(HERE))


def frames_and_stacks(rng, frames=3000, stacks=1500):
    """Frames are dictionaries that stacks share, as PyTorch's symboliser makes them."""
    every = []
    for number in range(frames):
        if number % 3:
            name = f"at::native::(anonymous namespace)::kernel_{number}<at::Tensor, c10::Scalar const&>"
            every.append({"name": name, "filename": "??", "line": 0})
        else:
            every.append({"name": f"forward_{number}", "line": number % 900 + 1,
                          "filename": f"/srv/model/layers/module_{number % 97}.py"})
    return [[rng.choice(every) for _ in range(rng.randint(20, 60))] for _ in range(stacks)]


def make(path, mebibytes):
    sys.path.insert(0, os.path.join(ROOT, "crates", "formats", "tests", "torch"))
    from allocator import Allocator

    rng = random.Random(7)
    stacks = frames_and_stacks(rng)
    device = Allocator()
    live, step = [], 0
    # 233 bytes of pickle for each entry were seen in a real file, and 209 here.
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
    """The plain way: load it all, pair frees with allocations, sum what is left by stack."""
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
    return {"leaked_bytes": sum(by_stack.values()), "leaked_allocations": len(live), "stacks": len(by_stack)}


def timed(command):
    """CPU seconds, seconds, peak memory in MiB, and what a command prints."""
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
    parser.add_argument("--keep", help="write the snapshot here, or use it if it is there")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-python", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_python:
        print(json.dumps(leaks_in_python(options.in_python)))
        # What follows the answer is not measured against Python.
        sys.stdout.flush()
        os._exit(0)

    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or os.path.join(folder, "snapshot.pickle")
        if not os.path.exists(path):
            # In a process of its own: its memory must not be inherited by what is measured.
            if child := os.fork():
                os.waitpid(child, 0)
            else:
                gc.disable()
                print(f"{make(path, options.mebibytes)} entries", flush=True)
                os._exit(0)
        size = os.path.getsize(path) / (1 << 20)
        ours = [options.binary, "report", path, "--analysis", "leaks", "--format", "json"]
        theirs = [sys.executable, os.path.abspath(__file__), "--in-python", path]
        our_runs, their_runs = [], []
        for _ in range(options.rounds):
            our_runs.append(timed(ours))
            their_runs.append(timed(theirs))
        # The run that was disturbed least.
        cpu, seconds, memory, answer = min(our_runs)
        python_cpu, python_seconds, python_memory, python_answer = min(their_runs)
        answer, python_answer = json.loads(answer), json.loads(python_answer)
        same = all(answer[key] == python_answer[key] for key in ("leaked_bytes", "leaked_allocations"))
        print(f"file       {size:8.0f} MiB")
        print(f"vramscope  {seconds:8.2f} s  {cpu:8.2f} s CPU  {memory:8.0f} MiB ({memory / size:.2f} x file)")
        print(f"python     {python_seconds:8.2f} s  {python_cpu:8.2f} s CPU  "
              f"{python_memory:8.0f} MiB ({python_memory / size:.2f} x file)")
        print(f"ratio      {python_seconds / seconds:8.1f}    {python_cpu / cpu:8.1f}")
        print("the answers agree" if same else f"THE ANSWERS DIFFER: {answer} {python_answer}")
        sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
