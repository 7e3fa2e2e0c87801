#!/usr/bin/env python3
"""What exports cost: seconds, most memory and size of every form, of a recording with a million events. Needs the
environment that tools/python-env makes; `./dev bench files` runs it."""

import json
import os
import subprocess
import sys
import tempfile
import time

EVENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
VRAMSCOPE = os.environ.get("VRAMSCOPE", os.path.join(ROOT, "target", "release", "vramscope"))
FORMS = ["nsys-tsv", "csv", "json", "folded", "flamegraph", "pprof", "speedscope", "perfetto", "torch", "parquet"]


def record(path):
    command = ["cargo", "run", "--release", "--locked", "--quiet", "-p", "vramscope-formats", "--example", "recording"]
    result = subprocess.run([*command, "--", str(EVENTS), path], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(result.stdout)


def size(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(size(os.path.join(path, name)) for name in os.listdir(path))


def timed(arguments):
    """Seconds, and the most memory in bytes."""
    start = time.perf_counter()
    child = subprocess.Popen([VRAMSCOPE, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, arguments
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.arrows")
        record(path)
        print(f"{EVENTS} events, a recording of {os.path.getsize(path) / 1e6:.1f} MB\n")
        print("| form | seconds | events a second | most memory | size |\n|---|---|---|---|---|")
        seconds, memory = timed(["report", path])
        print(f"| (summary) | {seconds:.2f} | {EVENTS / seconds:,.0f} | {memory / 1e6:.0f} MB | |")
        for form in FORMS:
            out = os.path.join(folder, form)
            more = ["--value", "allocated"] if form == "flamegraph" else []
            seconds, memory = timed(["export", path, "--format", form, "-o", out, *more])
            figures = f"{seconds:.2f} | {EVENTS / seconds:,.0f} | {memory / 1e6:.0f} MB | {size(out) / 1e6:.1f} MB"
            print(f"| `{form}` | {figures} |")


main()
