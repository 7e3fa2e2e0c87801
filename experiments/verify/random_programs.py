#!/usr/bin/env python3
"""Runs random programs over the whole memory API, traced and in-process, and compares each with the oracle.

usage: random_programs.py [--seeds 30] [--first SEED] [--ops 20000] [--threads 8] [--devices 3] [--jobs N]

The last report of every program must be exact and equal to the oracle of the simulated driver. Prints each seed that
differs; `--first SEED --seeds 1` repeats it, except for the timing of threads. Needs root and the simulated driver, no
GPU. Exits with 1 if a program differs.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(HERE))

from lib.oracle import differences
from lib.paths import Setup, argument_parser

TIMEOUT = 600


def run(setup, options, verb, seed):
    """Runs a program; returns its differences, the events that were received, and its calls."""
    program = [setup.workload, "--seed", str(seed), "random", "--ops", str(options.ops), "--threads", str(options.threads),
               "--devices", str(options.devices)]
    tracer = [setup.vramscope, verb, "--json", "--top", "1000000", *(setup.driver_option() if verb == "trace" else [])]
    with tempfile.TemporaryDirectory() as directory:
        environment = setup.environment(SIM_ORACLE_DIR=directory, SIM_DEVICES=str(options.devices))
        # The default size: some of the calls must fail.
        del environment["SIM_MEMORY"]
        done = subprocess.run([*tracer, "--", *program], env=environment, capture_output=True, text=True,
                              timeout=TIMEOUT, check=False)
        names = [name for name in os.listdir(directory) if name[0].isdigit()]
        if done.returncode or len(names) != 1 or not done.stdout:
            return [f"exit status {done.returncode}, {len(names)} oracles: {done.stderr[-300:]}"], 0, 0
        with open(os.path.join(directory, names[0])) as file:
            oracle = json.load(file)
    report = json.loads(done.stdout.splitlines()[-1])
    found = [process for process in report["processes"] if process["pid"] == oracle["pid"]]
    if len(found) != 1:
        return [f"{len(found)} processes in the report"], 0, 0
    problems = differences(found[0], oracle)
    if problems and report["lost_events"]:
        problems.append(f"{report['lost_events']} events were lost")
    return problems, oracle["allocations"], oracle["frees"]


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=30, help="number of programs")
    parser.add_argument("--first", type=int, default=random.randrange(1 << 31), help="first seed [default: random]")
    parser.add_argument("--ops", type=int, default=20000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--devices", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 4), help="programs at a time")
    options = parser.parse_args()
    setup, start = Setup(options), time.monotonic()
    work = [(verb, options.first + number) for number in range(options.seeds) for verb in ("trace", "run")]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda one: run(setup, options, *one), work))
    wrong = 0
    for (verb, seed), (problems, _, _) in zip(work, results, strict=True):
        if problems:
            wrong += 1
            print(f"seed {seed}, {verb}: {'; '.join(problems)}")
    print(f"{options.seeds} seeds from {options.first}, {options.ops} operations on {options.threads} threads and "
          f"{options.devices} devices, traced and in-process: {sum(a for _, a, _ in results)} allocations, "
          f"{sum(f for _, _, f in results)} frees, {wrong} of {len(work)} reports differ, {time.monotonic() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
