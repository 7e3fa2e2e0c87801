#!/usr/bin/env python3
"""What counting launches costs, against a probe that does nothing, in one run.

usage: launches.py [--rounds N] [--iterations N] VRAMSCOPE WORKLOAD

Runs `workload launches --time` by turns: without probes, with an empty probe on the launch functions,
with `vramscope kernels`, and with every launch's result looked at. The least of each is compared, for
other work on the machine only ever adds.
"""

import argparse
import json
import re
import subprocess
import sys


def measure(command):
    """Nanoseconds per launch, as the workload tells."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = re.search(r"([\d.]+) ns per launch", done.stdout + done.stderr)
    if not told:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return float(told.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=20000)
    parser.add_argument("vramscope")
    parser.add_argument("workload")
    options = parser.parse_args()
    work = [options.workload, "launches", "--time", "--iterations", str(options.iterations)]
    kernels = [options.vramscope, "kernels", "--json"]
    ways = {
        "none": work,
        "empty": [*kernels, "--empty-launch-probes", "--", *work],
        "kernels": [*kernels, "--", *work],
        "all checked": [*kernels, "--check-launches", "all", "--", *work],
    }
    times = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, command in ways.items():
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
