#!/usr/bin/env python3
"""What stacks cost an allocation, against probes that do nothing, in one run.

usage: cost.py [--rounds N] [--pairs N] [--depths 5 30] [--driver FOLDER] VRAMSCOPE

Runs the same pairs of allocation and free, by turns: without probes, with empty probes on both sides of
the same functions, and traced with stacks off, along frame pointers (fp) and in full; from C (with and
without frame pointers) and from Python. The least of each is compared, for other work on the machine
only ever adds. Needs root; FOLDER has libcuda.so.1 where it is not the system's.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def measure(command, environment):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    told = re.search(r"([\d.]+) ns per pair", done.stdout + done.stderr)
    if not told:
        sys.exit(f"{' '.join(command)}: {done.stdout} {done.stderr}")
    return float(told.group(1))


def build(folder, driver, options, name):
    program = os.path.join(folder, name)
    library = os.path.join(driver, "libcuda.so.1") if driver else "-l:libcuda.so.1"
    subprocess.run(["gcc", "-O1", *options, "-o", program, os.path.join(HERE, "pairs.c"), library], check=True)
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=20000)
    parser.add_argument("--depths", type=int, nargs="*", default=[5, 30])
    parser.add_argument("--driver")
    parser.add_argument("vramscope")
    options = parser.parse_args()
    environment = dict(os.environ)
    if options.driver:
        environment["LD_LIBRARY_PATH"] = options.driver
        environment["SIM_INIT_MS"] = "100"
    trace = [options.vramscope, "trace", "--json", "--interval", "1s"]
    ways = {
        "none": [],
        "empty": [*trace, "--stacks", "off", "--empty-probes", "--"],
        "off": [*trace, "--stacks", "off", "--"],
        "fp": [*trace, "--stacks", "fp", "--"],
        "full": [*trace, "--stacks", "full", "--"],
    }
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        pointers = build(folder, options.driver, ["-fno-omit-frame-pointer"], "pairs_fp")
        bare = build(folder, options.driver, ["-fomit-frame-pointer"], "pairs_bare")
        programs = {
            "C with frame pointers": [pointers],
            "C without": [bare],
            "Python": [sys.executable, os.path.join(HERE, "pairs.py")],
        }
        print("| program | depth | probes | ns per pair | added | x empty |")
        print("|---|---:|---|---:|---:|---:|")
        for name, program in programs.items():
            for depth in options.depths:
                work = [*program, str(depth), str(options.pairs)]
                times = {way: [] for way in ways}
                for _ in range(options.rounds):
                    for way, tracer in ways.items():
                        times[way].append(measure([*tracer, *work], environment))
                best = {way: min(values) for way, values in times.items()}
                results[f"{name} {depth}"] = times
                empty = best["empty"] - best["none"]
                for way, value in best.items():
                    added = value - best["none"]
                    print(f"| {name} | {depth} | {way} | {value:.0f} | {added:.0f} | {added / empty:.2f} |", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
