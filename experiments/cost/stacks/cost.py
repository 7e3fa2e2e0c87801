#!/usr/bin/env python3
"""Measures the cost of calls and their stacks, with probes and in-process, against empty probes.

usage: cost.py [--rounds N] [--pairs N] [--depths 5 30] [--driver DIR] VRAMSCOPE

Runs the same pairs of allocation and free, alternating: without probes, with empty entry and return probes on the
same functions, and with `trace` and `run` with --stacks off, fp and full; from C (with and without frame pointers)
and from Python. CPU times of the fastest part of a run are compared, because other work on the machine only adds time.
Needs root; DIR holds libcuda.so.1 if it is not the installed one.
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
    """Returns nanoseconds of CPU time per pair, as the program prints them."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    found = re.search(r"([\d.]+) at best", done.stdout + done.stderr)
    if not found:
        sys.exit(f"{' '.join(command)}: {done.stdout} {done.stderr}")
    return float(found.group(1))


def build(directory, driver, options, name):
    program = os.path.join(directory, name)
    library = os.path.join(driver, "libcuda.so.1") if driver else "-l:libcuda.so.1"
    subprocess.run(["gcc", "-O1", *options, "-o", program, os.path.join(HERE, "pairs.c"), library], check=True)
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=20000)
    parser.add_argument("--depths", type=int, nargs="*", default=[5, 30])
    parser.add_argument("--driver", metavar="DIR")
    parser.add_argument("vramscope")
    options = parser.parse_args()
    environment = dict(os.environ)
    if options.driver:
        environment["LD_LIBRARY_PATH"] = options.driver
        environment["SIM_INIT_MS"] = "100"
    reports = ["--json", "--interval", "1s", "--stacks"]
    tracers = {"none": [], "empty": [options.vramscope, "trace", *reports, "off", "--empty-probes", "--"]}
    for verb in ("trace", "run"):
        for stacks in ("off", "fp", "full"):
            tracers[f"{verb}, {stacks}"] = [options.vramscope, verb, *reports, stacks, "--"]
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        pointers = build(directory, options.driver, ["-fno-omit-frame-pointer"], "pairs_fp")
        without_pointers = build(directory, options.driver, ["-fomit-frame-pointer"], "pairs_no_fp")
        programs = {
            "C with frame pointers": [pointers],
            "C without": [without_pointers],
            "Python": [sys.executable, os.path.join(HERE, "pairs.py")],
        }
        print("| program | depth | tracing | ns per pair | added per call | x none | added, x empty |")
        print("|---|---:|---|---:|---:|---:|---:|")
        for name, program in programs.items():
            for depth in options.depths:
                command = [*program, str(depth), str(options.pairs)]
                times = {mode: [] for mode in tracers}
                for _ in range(options.rounds):
                    for mode, tracer in tracers.items():
                        times[mode].append(measure([*tracer, *command], environment))
                best = {mode: min(values) for mode, values in times.items()}
                results[f"{name} {depth}"] = times
                empty = best["empty"] - best["none"]
                for mode, value in best.items():
                    added = value - best["none"]
                    ratios = f"{value / best['none']:.2f} | {added / empty:.2f}"
                    print(f"| {name} | {depth} | {mode} | {value:.0f} | {added / 2:.0f} | {ratios} |", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
