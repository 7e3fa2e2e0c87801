#!/usr/bin/env python3
"""Measures the time that the probe of blocks takes per hit, by the kernel's statistics of BPF programs.

usage: probe_time.py [--rounds N] [--pairs N] SIMULATOR NAME=VRAMSCOPE...

Unlike times of the traced program, it includes neither the trap nor waiting for a processor, so it can be measured on a
machine with other work. A pair is two hits: a tensor and its end. Prints the median and the range over the rounds, in
nanoseconds per hit, by program and by mode of --allocators; the builds take turns. Needs root and bpftool; SIMULATOR is
the directory of the simulated libraries.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
STATISTICS = "/proc/sys/kernel/bpf_stats_enabled"


def block_program():
    """Returns the number of hits and the time of the loaded block program."""
    listed = subprocess.run(["bpftool", "-j", "prog", "show"], capture_output=True, text=True, check=True)
    blocks = [one for one in json.loads(listed.stdout) if one.get("name", "").startswith("block_") and one.get("run_cnt")]
    return (blocks[-1]["run_cnt"], blocks[-1]["run_time_ns"]) if blocks else None


def measure(command, environment):
    """Returns nanoseconds per hit."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        last = None
        while process.poll() is None:
            last = block_program() or last
            time.sleep(0.05)
    if not last:
        sys.exit(f"{' '.join(command)}: no hits")
    return last[1] / last[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=20000)
    parser.add_argument("simulator")
    parser.add_argument("binaries", nargs="+", metavar="NAME=VRAMSCOPE")
    options = parser.parse_args()
    environment = dict(os.environ, LD_LIBRARY_PATH=os.path.abspath(options.simulator), SIM_INIT_MS="500")
    pairs = str(options.pairs)
    spam = [os.path.join(options.simulator, "workload"), "torch-spam", "--rounds", "3", "--pairs", pairs, "--stacks"]
    programs = {f"native, {stacks} stacks": [*spam, str(stacks)] for stacks in (1, 32)}
    for depth in (5, 30):
        programs[f"Python, depth {depth}"] = [sys.executable, os.path.join(HERE, "pairs.py"), str(depth), pairs]
    with open(STATISTICS, "w", encoding="ascii") as file:
        file.write("1")
    found = {}
    for _ in range(options.rounds):
        for name, program in programs.items():
            for label, path in (one.split("=", 1) for one in options.binaries):
                for mode in ("totals", "sampled", "full"):
                    command = [path, "trace", "--json", "--interval", "5s", f"--allocators={mode}", "--", *program]
                    found.setdefault((name, f"{label} {mode}"), []).append(measure(command, environment))
    with open(STATISTICS, "w", encoding="ascii") as file:
        file.write("0")
    for (name, way), times in found.items():
        print(f"{name:20} {way:16} {statistics.median(times):6.0f}  ({min(times):.0f} to {max(times):.0f})")


if __name__ == "__main__":
    main()
