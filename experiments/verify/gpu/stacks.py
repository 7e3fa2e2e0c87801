#!/usr/bin/env python3
"""Checks the allocation sites of running programs, as `vramscope trace -p PID --by site` reports them.

usage: stacks.py --vramscope PATH [--out DIR] [PROGRAM…]

The tracer is attached after a program prints READY. Prints the time until the first report with a resolved site, the
number of stacks that reach the first function of their thread, and the report.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def command(program, out):
    path = os.path.join(HERE, "programs", program)
    if program.endswith(".cu"):
        built = os.path.join(out, program[:-3])
        subprocess.run(["nvcc", "-O2", "-g", "-o", built, path], check=True)
        return [built]
    return [sys.executable, path]


def complete(site):
    """Returns whether a stack reaches the first function of its thread."""
    return not any(frame.get("unknown_reason") in ("truncated", "no_unwind_info", "process_exited") for frame in site["frames"])


def check(vramscope, program, out):
    name = program.split(".")[0]
    target = subprocess.Popen(command(program, out), stdout=subprocess.PIPE, text=True)
    while (line := target.stdout.readline()) and "READY" not in line:
        pass
    report = os.path.join(out, f"{name}.jsonl")
    if os.path.exists(report):
        os.remove(report)
    began = time.time()
    tracer = subprocess.Popen([vramscope, "trace", "-p", str(target.pid), "--json", "--top", "100000", "--interval", "500ms",
                               "--duration", "8s", "-o", report], stderr=subprocess.PIPE, text=True)
    first = None
    while tracer.poll() is None:
        time.sleep(0.1)
        if first is None and os.path.exists(report):
            for text in pathlib.Path(report).read_text().splitlines(keepends=True):
                if text.endswith("\n") and any(site["frames"] for site in json.loads(text)["sites"]):
                    first = time.time() - began
    print(tracer.stderr.read())
    last = json.loads(pathlib.Path(report).read_text().splitlines()[-1])
    sites = last["sites"]
    calls = sum(site["allocations_total"] for site in sites)
    complete_stacks = sum(site["allocations_total"] for site in sites if complete(site))
    python = sum(1 for site in sites if any(frame["language"] == "python" for frame in site["frames"]))
    print(f"\n## {name}: first site after {first if first is None else round(first, 2)} s; {len(sites)} sites "
          f"({python} with Python), {calls} allocations, {complete_stacks} with a complete stack; {last['lost_events']} lost")
    text = subprocess.run([vramscope, "trace", "-p", str(target.pid), "--by", "site", "--top", "3", "--stack-depth", "0",
                           "--duration", "4s", "--interval", "1h"], capture_output=True, text=True, check=False)
    print(text.stdout, text.stderr)
    target.kill()
    target.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("programs", nargs="*", default=["stacks_torch.py", "stacks_cupy.py", "stacks_cuda.cu"])
    options = parser.parse_args()
    for program in options.programs:
        check(options.vramscope, program, options.out)


if __name__ == "__main__":
    main()
