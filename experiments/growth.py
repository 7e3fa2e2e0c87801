#!/usr/bin/env python3
"""What an event, a report and a live allocation cost the tracer, by how many allocations are live.

usage: growth.py [--counts 1000 … 5000000] [--quick] [--results FILE] [--driver sim|real] …

A program holds N allocations, then makes pairs of allocation and free beside them. The tracer's CPU time
and memory are read from /proc: with no reports for the events, with twenty a second for the reports. The
same for the plainest ledger there is (experiments/stress/floor.c, a hash table walked at every report).
Needs root.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from bench import results  # noqa: E402
from bench.place import Place, options, probe_offsets  # noqa: E402
from bench.processes import Lines, Usage, end_well, resident, start, stop  # noqa: E402

COUNTS = [1_000, 10_000, 100_000, 1_000_000, 5_000_000]
REPORT_MS = 50


class Holder:
    """The program with the allocations."""

    def __init__(self, place, count, pairs, sizes):
        self.process = start([place.tool("growth"), count, pairs, sizes], env=place.environment(), text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines = Lines(self.process.stdout)
        self.wait("ready", 60)

    def wait(self, word, patience):
        return self.lines.wait_for(lambda line: word in line, patience, "the program with the allocations")

    def go(self, word, patience):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.wait(word, patience)

    def end(self):
        self.process.stdin.close()
        self.process.wait(300)


def tracer(place, holder, interval, out):
    process = start([place.vramscope, "trace", "--json", "--interval", interval, "--top", "10", *place.driver_option(),
                     "-p", holder.process.pid, "--force", "-o", out], stderr=subprocess.PIPE, text=True)
    Lines(process.stderr).wait_for(lambda line: "attached to" in line, 60, "the tracer's probes")
    return process


def naive(place, report_ms):
    offsets = [hex(offset) for offset in probe_offsets(place.driver_file, ["cuMemAlloc_v2", "cuMemFree_v2"])]
    process = start([place.tool("floor"), "naive", place.tool("floor.bpf.o"), place.driver_file, *offsets, report_ms],
                    stdout=subprocess.PIPE, text=True)
    lines = Lines(process.stdout)
    lines.wait_for(lambda line: "ready" in line, 60, "the plain ledger")
    return process, lines


def per_second(pid, seconds):
    usage = Usage(pid)
    time.sleep(seconds)
    used = usage.so_far()
    return used["cpu_s"] / used["seconds"]


def lines_of(path):
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def events(watch, holder, chosen, count):
    """Cost of an event beside what is live, bytes per live allocation, and what the process has then."""
    holder.go("begun", 60)
    # Until the stacks have names: what that takes is no matter of how many there are.
    time.sleep(1.0)
    before = resident(watch.pid)
    holder.go("held", 600)
    time.sleep(1.0)
    memory = resident(watch.pid)
    idle = per_second(watch.pid, chosen.window / 2)
    usage = Usage(watch.pid)
    holder.go("per pair", 300)
    time.sleep(0.1)
    used = usage.so_far()
    cost = (used["cpu_s"] - idle * used["seconds"]) / (2 * chosen.pairs)
    return {"event_us": cost * 1e6, "bytes": (memory - before) / count, "memory_mb": memory / 1e6, "idle": idle}


def measure_tracer(place, chosen, count, sizes, folder):
    out = os.path.join(folder, "reports.jsonl")
    holder = Holder(place, count, chosen.pairs, sizes)
    watch = tracer(place, holder, "10h", out)
    row = events(watch, holder, chosen, count)
    holder.end()
    stop(watch)
    holder = Holder(place, count, 0, sizes)
    watch = tracer(place, holder, f"{REPORT_MS}ms", out)
    holder.go("begun", 60)
    holder.go("held", 600)
    time.sleep(1.0)
    made, began = lines_of(out), time.monotonic()
    used = per_second(watch.pid, chosen.window)
    each = (lines_of(out) - made) / (time.monotonic() - began)
    row["report_us"] = (used - row["idle"]) / each * 1e6 if each else None
    holder.end()
    stop(watch)
    return row


def measure_naive(place, chosen, count, sizes):
    holder = Holder(place, count, chosen.pairs, sizes)
    watch, _ = naive(place, 0)
    row = events(watch, holder, chosen, count)
    holder.end()
    stop(watch)
    holder = Holder(place, count, 0, sizes)
    watch, lines = naive(place, REPORT_MS)
    holder.go("begun", 60)
    holder.go("held", 600)
    time.sleep(chosen.window)
    # While the program holds everything: its end makes no free.
    stop(watch)
    holder.end()
    lines.finish()
    told = json.loads(lines.lines[-1])
    row["report_us"] = told["report_nanos"] / told["reports"] / 1e3 if told["reports"] else None
    row["lost"] = told["lost"]
    return row


def main():
    parser = options(__doc__)
    parser.add_argument("--counts", nargs="*", type=int, default=COUNTS)
    parser.add_argument("--pairs", type=int, default=50_000)
    parser.add_argument("--window", type=float, default=3.0, help="seconds of a measurement")
    parser.add_argument("--quick", action="store_true", help="up to 100,000, one second each")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.counts, chosen.window, chosen.pairs = [c for c in chosen.counts if c <= 100_000], 1.0, 20_000
    end_well()
    place = Place(chosen)
    about = results.facts(place.vramscope)
    about["driver"] = "simulated" if place.simulated else "real"
    with_floor = place.tool("floor") and place.tool("floor.bpf.o")
    rows = []
    print("| who | live | sizes | us per event | us per report | bytes per live allocation | MB in all |", flush=True)
    print("|---|---:|---|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for count in chosen.counts:
            for who, sizes in [("vramscope", "same"), ("vramscope", "distinct"), ("naive", "distinct")]:
                if who == "naive" and not with_floor:
                    continue
                row = (measure_naive(place, chosen, count, sizes) if who == "naive"
                       else measure_tracer(place, chosen, count, sizes, folder))
                rows.append({"who": who, "live": count, "sizes": sizes, **row})
                print(f"| {who} | {count:,} | {sizes} | {row['event_us']:.2f} | {row['report_us'] or 0:.0f} "
                      f"| {row['bytes']:.1f} | {row['memory_mb']:.1f} |", flush=True)
    if chosen.results:
        results.keep(chosen.results, chosen.machine, "growth", {"pairs": chosen.pairs, "rows": rows}, about)


if __name__ == "__main__":
    main()
