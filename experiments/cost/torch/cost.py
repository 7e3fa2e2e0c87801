#!/usr/bin/env python3
"""Measures the cost of --allocators per tensor and its free, against an empty probe.

usage: cost.py [--rounds N] [--pairs N] [--depths 5 30] [--old VRAMSCOPE] SIMULATOR VRAMSCOPE

Runs the same pairs alternating: without probes, with an empty probe on the same function, with --allocators=totals,
=sampled and =full; from native code with one and with 32 distinct stacks, and from Python. --old adds =full of another
build. The minimum of each is compared, because other work on the machine only adds time. Needs root; SIMULATOR is the
directory of the simulated libraries.
"""
import argparse
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def measure(command, environment):
    """Returns nanoseconds per pair, as the program prints them, and the number of lost events."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    found = re.findall(r"([\d.]+) ns per pair", done.stdout + done.stderr)
    if not found:
        sys.exit(f"{' '.join(command)}: {done.stdout} {done.stderr}")
    lost = re.findall(r'"allocator":"pytorch","exact":\w+,"lost_events":(\d+)', done.stdout)
    # In the first round the stacks are new.
    return min(float(one) for one in found[-2:]), int(lost[-1]) if lost else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=30000)
    parser.add_argument("--depths", type=int, nargs="*", default=[5, 30])
    parser.add_argument("--old")
    parser.add_argument("simulator")
    parser.add_argument("vramscope")
    options = parser.parse_args()
    environment = dict(os.environ, LD_LIBRARY_PATH=os.path.abspath(options.simulator), SIM_INIT_MS="500")
    trace = [options.vramscope, "trace", "--json", "--interval", "1s"]
    tracers = {
        "none": [],
        "empty": [*trace, "--allocators=totals", "--stacks", "off", "--empty-probes", "--"],
        "totals": [*trace, "--allocators=totals", "--"],
        "sampled": [*trace, "--allocators=sampled", "--"],
        "full": [*trace, "--allocators=full", "--"],
    }
    if options.old:
        tracers["old full"] = [options.old, *trace[1:], "--allocators=full", "--"]
    workload = os.path.join(options.simulator, "workload")
    spam = [workload, "torch-spam", "--rounds", "3", "--pairs", str(options.pairs), "--stacks"]
    programs = {f"native, {stacks} stacks": [*spam, str(stacks)] for stacks in (1, 32)}
    for depth in options.depths:
        script = os.path.join(HERE, "pairs.py")
        programs[f"Python, depth {depth}"] = [sys.executable, script, str(depth), str(options.pairs)]
    results = {}
    for _ in range(options.rounds):
        for name, program in programs.items():
            for mode, tracer in tracers.items():
                nanos, lost = measure([*tracer, *program], environment)
                best = results.setdefault(name, {}).setdefault(mode, [nanos, 0])
                best[0] = min(best[0], nanos)
                best[1] += lost
    print("| pairs | " + " | ".join(tracers) + " | lost |")
    print("|---|" + "---|" * (len(tracers) + 1))
    for name, modes in results.items():
        nanos = {mode: best[0] for mode, best in modes.items()}
        cells = [f"{value:.0f} ns ({value / nanos['empty']:.2f})" for value in nanos.values()]
        print(f"| {name} | " + " | ".join(cells) + f" | {sum(best[1] for best in modes.values())} |")
    print(json.dumps(results), file=sys.stderr)


if __name__ == "__main__":
    main()
