#!/usr/bin/env python3
"""Measures the cost of counting launches, against an empty probe.

usage: launches.py [--rounds N] [--iterations N] VRAMSCOPE WORKLOAD

Runs `workload launches --time` alternating: without probes, with an empty probe on the launch functions,
with `vramscope kernels`, and with the result of every launch checked. The minimum of each is compared, because
other work on the machine only adds time.
"""

import argparse
import json
import re
import subprocess
import sys


def measure(command):
    """Returns nanoseconds per launch, as the workload prints them."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"([\d.]+) ns per launch", done.stdout + done.stderr)
    if not found:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return float(found.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=20000)
    parser.add_argument("vramscope")
    parser.add_argument("workload")
    options = parser.parse_args()
    workload = [options.workload, "launches", "--time", "--iterations", str(options.iterations)]
    kernels = [options.vramscope, "kernels", "--json"]
    commands = {
        "none": workload,
        "empty": [*kernels, "--empty-launch-probes", "--", *workload],
        "kernels": [*kernels, "--", *workload],
        "all checked": [*kernels, "--check-launches", "all", "--", *workload],
    }
    times = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            times[name].append(measure(command))
    best = {name: min(values) for name, values in times.items()}
    empty = best["empty"] - best["none"]
    print(f"{'probe':<12} {'ns/launch':>10} {'added':>8} {'x empty':>8}")
    for name, value in best.items():
        added = value - best["none"]
        print(f"{name:<12} {value:>10.1f} {added:>8.1f} {added / empty:>8.2f}")
    print(json.dumps({"best": best, "all": times}))


if __name__ == "__main__":
    main()
