#!/usr/bin/env python3
"""Measures the tracer's cost per event, report and live allocation, by number of live allocations.

usage: growth.py [--counts 1000 … 5000000] [--quick] [--results FILE] [--driver sim|real] …

A program holds N allocations and then makes pairs of allocation and free. The tracer's CPU time and memory are read
from /proc: without reports for the cost of events, with twenty reports per second for the cost of reports. The same is
measured for a plain ledger (cost/stress/floor.c): a hash table that is scanned at every report. Needs root.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(HERE))

from lib import machine, results
from lib.paths import Setup, argument_parser, probe_offsets
from lib.processes import Lines, Usage, kill_children_at_exit, resident_bytes, start, stop, wait_attached

COUNTS = [1_000, 10_000, 100_000, 1_000_000, 5_000_000]
REPORT_MS = 50


class Target:
    """The program that holds the allocations."""

    def __init__(self, setup, count, pairs, sizes):
        self.process = start([setup.tool("growth"), count, pairs, sizes], env=setup.environment(), text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines = Lines(self.process.stdout)
        self.wait("ready", 60)

    def wait(self, word, timeout):
        return self.lines.wait_for(lambda line: word in line, timeout, "the program with the allocations")

    def go(self, word, timeout):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.wait(word, timeout)

    def end(self):
        self.process.stdin.close()
        self.process.wait(300)


def start_tracer(setup, target, interval, out):
    process = start([setup.vramscope, "trace", "-v", "--json", "--interval", interval, "--top", "10", *setup.driver_option(),
                     "-p", target.process.pid, "--force", "-o", out], stderr=subprocess.PIPE, text=True)
    wait_attached(Lines(process.stderr))
    return process


def start_naive(setup, report_ms):
    offsets = [hex(offset) for offset in probe_offsets(setup.driver_file, ["cuMemAlloc_v2", "cuMemFree_v2"])]
    process = start([setup.tool("floor"), "naive", setup.tool("floor.bpf.o"), setup.driver_file, *offsets, report_ms],
                    stdout=subprocess.PIPE, text=True)
    lines = Lines(process.stdout)
    lines.wait_for(lambda line: "ready" in line, 60, "the plain ledger")
    return process, lines


def cpu_per_second(pid, seconds):
    usage = Usage(pid)
    time.sleep(seconds)
    used = usage.so_far()
    return used["cpu_s"] / used["seconds"]


def count_lines(path):
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def measure_events(tracer, target, options, count):
    """Returns the cost of an event, the bytes per live allocation, and the memory of the tracer."""
    target.go("begun", 60)
    # Until symbols are resolved, which does not depend on the number of allocations.
    time.sleep(1.0)
    before = resident_bytes(tracer.pid)
    target.go("held", 600)
    time.sleep(1.0)
    memory = resident_bytes(tracer.pid)
    idle = cpu_per_second(tracer.pid, options.window / 2)
    usage = Usage(tracer.pid)
    target.go("per pair", 300)
    time.sleep(0.1)
    used = usage.so_far()
    cost = (used["cpu_s"] - idle * used["seconds"]) / (2 * options.pairs)
    return {"event_us": cost * 1e6, "bytes": (memory - before) / count, "memory_mb": memory / 1e6, "idle": idle}


def measure_tracer(setup, options, count, sizes, directory):
    out = os.path.join(directory, "reports.jsonl")
    target = Target(setup, count, options.pairs, sizes)
    tracer = start_tracer(setup, target, "10h", out)
    row = measure_events(tracer, target, options, count)
    target.end()
    stop(tracer)
    target = Target(setup, count, 0, sizes)
    tracer = start_tracer(setup, target, f"{REPORT_MS}ms", out)
    target.go("begun", 60)
    target.go("held", 600)
    time.sleep(1.0)
    reports, began = count_lines(out), time.monotonic()
    used = cpu_per_second(tracer.pid, options.window)
    rate = (count_lines(out) - reports) / (time.monotonic() - began)
    row["report_us"] = (used - row["idle"]) / rate * 1e6 if rate else None
    target.end()
    stop(tracer)
    return row


def measure_naive(setup, options, count, sizes):
    target = Target(setup, count, options.pairs, sizes)
    tracer, _ = start_naive(setup, 0)
    row = measure_events(tracer, target, options, count)
    target.end()
    stop(tracer)
    target = Target(setup, count, 0, sizes)
    tracer, lines = start_naive(setup, REPORT_MS)
    target.go("begun", 60)
    target.go("held", 600)
    time.sleep(options.window)
    # Before the program ends: the plain ledger sees no frees at its exit.
    stop(tracer)
    target.end()
    lines.finish()
    totals = json.loads(lines.lines[-1])
    row["report_us"] = totals["report_nanos"] / totals["reports"] / 1e3 if totals["reports"] else None
    row["lost"] = totals["lost"]
    return row


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--counts", nargs="*", type=int, default=COUNTS, help="numbers of live allocations")
    parser.add_argument("--pairs", type=int, default=50_000, help="pairs of allocation and free")
    parser.add_argument("--window", type=float, default=3.0, help="seconds of a measurement")
    parser.add_argument("--quick", action="store_true", help="up to 100,000 allocations, one second each")
    options = parser.parse_args()
    if options.quick:
        options.counts, options.window, options.pairs = [c for c in options.counts if c <= 100_000], 1.0, 20_000
    kill_children_at_exit()
    setup = Setup(options)
    facts = machine.measurement_facts(setup.vramscope)
    facts["driver"] = "simulated" if setup.simulated else "real"
    with_floor = setup.tool("floor") and setup.tool("floor.bpf.o")
    rows = []
    print("| tool | live | sizes | us per event | us per report | bytes per live allocation | total MB |", flush=True)
    print("|---|---:|---|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        for count in options.counts:
            for tool, sizes in [("vramscope", "same"), ("vramscope", "distinct"), ("naive", "distinct")]:
                if tool == "naive" and not with_floor:
                    continue
                row = (measure_naive(setup, options, count, sizes) if tool == "naive"
                       else measure_tracer(setup, options, count, sizes, directory))
                rows.append({"who": tool, "live": count, "sizes": sizes, **row})
                print(f"| {tool} | {count:,} | {sizes} | {row['event_us']:.2f} | {row['report_us'] or 0:.0f} "
                      f"| {row['bytes']:.1f} | {row['memory_mb']:.1f} |", flush=True)
    if options.results:
        results.store(options.results, options.machine, "growth", {"pairs": options.pairs, "rows": rows}, facts)


if __name__ == "__main__":
    main()
