#!/usr/bin/env python3
"""Measures exports of a recording with a million events: time, peak memory and output size of every format.

Needs the environment of tools/python-env; `./dev bench files` runs it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

EVENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
VRAMSCOPE = os.environ.get("VRAMSCOPE", os.path.join(ROOT, "target", "release", "vramscope"))
FORMATS = ["nsys-tsv", "csv", "json", "folded", "flamegraph", "pprof", "speedscope", "perfetto", "torch", "parquet"]


def record(path):
    """Writes a recording with the example program of the formats crate."""
    command = ["cargo", "run", "--release", "--locked", "--quiet", "-p", "vramscope-formats", "--example", "recording"]
    result = subprocess.run([*command, "--", str(EVENTS), path], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(result.stdout)


def size(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(size(os.path.join(path, name)) for name in os.listdir(path))


def timed(arguments):
    """Runs vramscope and returns the seconds that it took and its peak memory in bytes."""
    start = time.perf_counter()
    child = subprocess.Popen([VRAMSCOPE, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, arguments
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def main():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "run.arrows")
        record(path)
        print(f"{EVENTS} events, a recording of {os.path.getsize(path) / 1e6:.1f} MB\n")
        print("| format | seconds | events/s | peak memory | size |\n|---|---|---|---|---|")
        seconds, memory = timed(["report", path])
        print(f"| (summary) | {seconds:.2f} | {EVENTS / seconds:,.0f} | {memory / 1e6:.0f} MB | |")
        for name in FORMATS:
            out = os.path.join(directory, name)
            more = ["--value", "allocated"] if name == "flamegraph" else []
            seconds, memory = timed(["export", path, "--format", name, "-o", out, *more])
            cells = f"{seconds:.2f} | {EVENTS / seconds:,.0f} | {memory / 1e6:.0f} MB | {size(out) / 1e6:.1f} MB"
            print(f"| `{name}` | {cells} |")


main()
