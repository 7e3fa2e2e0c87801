#!/usr/bin/env python3
"""What --torch costs a tensor and its end, against a probe that does nothing, in one run.

usage: cost.py [--rounds N] [--pairs N] [--depths 5 30] SIMULATOR VRAMSCOPE

Runs the same pairs by turns: without probes, with an empty probe on the same function, with sums alone and
in full; from native code with one and with 32 different stacks, and from Python. The least of each is
compared, for other work on the machine only ever adds. Needs root; SIMULATOR has the simulated libraries.
"""
import argparse
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def measure(command, environment):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    told = re.findall(r"([\d.]+) ns a pair", done.stdout + done.stderr)
    if not told:
        sys.exit(f"{' '.join(command)}: {done.stdout} {done.stderr}")
    lost = re.findall(r'"torch":{"exact":\w+,"lost_events":(\d+)', done.stdout)
    # The first round meets stacks that are not known yet.
    return min(float(one) for one in told[-2:]), int(lost[-1]) if lost else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=30000)
    parser.add_argument("--depths", type=int, nargs="*", default=[5, 30])
    parser.add_argument("simulator")
    parser.add_argument("vramscope")
    options = parser.parse_args()
    environment = dict(os.environ, LD_LIBRARY_PATH=os.path.abspath(options.simulator), SIM_INIT_MS="500")
    trace = [options.vramscope, "trace", "--json", "--interval", "1s"]
    ways = {
        "none": [],
        "empty": [*trace, "--torch=totals", "--stacks", "off", "--empty-probes", "--"],
        "totals": [*trace, "--torch=totals", "--"],
        "full": [*trace, "--torch=full", "--"],
    }
    workload = os.path.join(options.simulator, "workload")
    spam = [workload, "torch-spam", "--rounds", "3", "--pairs", str(options.pairs), "--stacks"]
    programs = {f"native, {stacks} stacks": [*spam, str(stacks)] for stacks in (1, 32)}
    for depth in options.depths:
        script = os.path.join(HERE, "pairs.py")
        programs[f"Python, {depth} deep"] = [sys.executable, script, str(depth), str(options.pairs)]
    results = {}
    for _ in range(options.rounds):
        for name, program in programs.items():
            for way, before in ways.items():
                nanos, lost = measure([*before, *program], environment)
                best = results.setdefault(name, {}).setdefault(way, [nanos, 0])
                best[0] = min(best[0], nanos)
                best[1] += lost
    print("| pairs | none | empty | totals | full | totals - empty | full - empty | lost |")
    print("|---|---|---|---|---|---|---|---|")
    for name, of in results.items():
        nanos = {way: best[0] for way, best in of.items()}
        lost = sum(best[1] for best in of.values())
        print(
            f"| {name} | {nanos['none']:.0f} ns | {nanos['empty']:.0f} ns | {nanos['totals']:.0f} ns "
            f"({nanos['totals'] / nanos['empty']:.2f}) | {nanos['full']:.0f} ns ({nanos['full'] / nanos['empty']:.2f}) "
            f"| {nanos['totals'] - nanos['empty']:.0f} ns | {nanos['full'] - nanos['empty']:.0f} ns | {lost} |"
        )
    print(json.dumps(results), file=sys.stderr)


if __name__ == "__main__":
    main()
