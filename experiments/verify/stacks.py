#!/usr/bin/env python3
"""Where allocations of running programs come from, as `vramscope trace -p PID --by site` tells.

usage: stacks.py --vramscope PATH [--out FOLDER] [PROGRAM…]

Each program is started first and says READY; then the tracer comes. Printed are the time until the first
report that names a site, how many of the stacks reach the first function of their thread, and the report.
"""
import argparse
import json
import os
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


def whole(site):
    """Whether a stack reaches where its thread began."""
    return not any(frame.get("unknown_reason") in ("stack truncated", "no unwind information", "process exited") for frame in site["frames"])


def look(vramscope, program, out):
    name = program.split(".")[0]
    player = subprocess.Popen(command(program, out), stdout=subprocess.PIPE, text=True)
    while (line := player.stdout.readline()) and "READY" not in line:
        pass
    report = os.path.join(out, f"{name}.jsonl")
    if os.path.exists(report):
        os.remove(report)
    began = time.time()
    tracer = subprocess.Popen([vramscope, "trace", "-p", str(player.pid), "--json", "--top", "100000", "--interval", "500ms",
                               "--duration", "8s", "-o", report], stderr=subprocess.PIPE, text=True)
    first = None
    while tracer.poll() is None:
        time.sleep(0.1)
        if first is None and os.path.exists(report):
            for text in open(report):
                if text.endswith("\n") and any(site["frames"] for site in json.loads(text)["sites"]):
                    first = time.time() - began
    print(tracer.stderr.read())
    last = json.loads(open(report).read().strip().split("\n")[-1])
    sites = last["sites"]
    calls = sum(site["allocations_total"] for site in sites)
    reach = sum(site["allocations_total"] for site in sites if whole(site))
    python = sum(1 for site in sites if any(frame["language"] == "python" for frame in site["frames"]))
    print(f"\n## {name}: first site after {first if first is None else round(first, 2)} s; {len(sites)} sites "
          f"({python} with Python), {calls} allocations, {reach} with a whole stack; exact of what was seen: lost {last['lost_events']}")
    text = subprocess.run([vramscope, "trace", "-p", str(player.pid), "--by", "site", "--top", "3", "--stack-depth", "0",
                           "--duration", "4s", "--interval", "1h"], capture_output=True, text=True, check=False)
    print(text.stdout, text.stderr)
    player.kill()
    player.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("programs", nargs="*", default=["stacks_torch.py", "stacks_cupy.py", "stacks_cuda.cu"])
    options = parser.parse_args()
    for program in options.programs:
        look(options.vramscope, program, options.out)


if __name__ == "__main__":
    main()
