#!/usr/bin/env python3
"""Where the tracer's time goes: its functions by nanoseconds of CPU per event.

usage: profile.py [--rate max] [--free-ratio 1.0] [--stacks off] [--seconds 5] [--top 25] …

Traces the workload `spam` and samples the tracer with perf (Debian: linux-perf). The beginning is left out,
in which stacks get their names. Needs root.
"""
import collections
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import cells  # noqa: E402
from bench.place import Place, options  # noqa: E402
from bench.processes import Lines, Usage, end_well, start, stop  # noqa: E402


def sample(place, chosen, folder):
    """CPU seconds per event, and the file that perf wrote."""
    cell = {"rate": chosen.rate, "free_ratio": chosen.free_ratio}
    player = cells.spam(place, cell, folder, chosen.seconds + 1)
    lines = Lines(player.stdout)
    lines.wait_for(lambda line: line.strip() == "ready", 60, "the target")
    tracer = start([place.vramscope, "trace", "--json", "--stacks", chosen.stacks, "--interval", "10h",
                    *place.driver_option(), "-p", player.pid, "--force", "-o",
                    os.path.join(folder, "reports.jsonl")],
                   stderr=subprocess.PIPE, text=True)
    Lines(tracer.stderr).wait_for(lambda line: "attached to" in line, 60, "the tracer's probes")
    player.stdin.write("go\n")
    player.stdin.flush()
    time.sleep(1)
    usage, data = Usage(tracer.pid), os.path.join(folder, "perf.data")
    recorder = start(["perf", "record", "-q", "-e", "cpu-clock", "-F", "4000", "-o", data, "-p", tracer.pid],
                     stderr=subprocess.DEVNULL)
    told = lines.wait_for(cells.TOLD.search, chosen.seconds + 120, "the target's own figures")
    used = usage.so_far()
    stop(recorder)
    player.wait(300)
    stop(tracer, patience=120)
    events, seconds = cells.TOLD.search(told).groups()[:2]
    rate = int(events) / float(seconds)
    return used["cpu_s"] / (rate * used["seconds"]), rate, data


def main():
    parser = options(__doc__)
    parser.add_argument("--rate", default="max")
    parser.add_argument("--free-ratio", type=float, default=1.0)
    parser.add_argument("--stacks", default="off")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--top", type=int, default=25)
    chosen = parser.parse_args()
    end_well()
    place = Place(chosen)
    with tempfile.TemporaryDirectory() as folder:
        each, rate, data = sample(place, chosen, folder)
        done = subprocess.run(["perf", "script", "-i", data, "-F", "comm,ip,sym,dso"], capture_output=True, text=True,
                              check=True)
    functions, threads = collections.Counter(), collections.Counter()
    for line in done.stdout.splitlines():
        found = re.match(r"\s*(\S+)\s+[0-9a-f]+ (.*) \((\S+)\)$", line)
        if found:
            thread, function, module = found.groups()
            threads[thread] += 1
            functions[thread, function, os.path.basename(module)] += 1
    total = sum(threads.values()) or 1
    print(f"{rate:,.0f} events/s, {each * 1e9:.0f} ns of CPU per event, {total} samples")
    for thread, count in threads.most_common():
        print(f"  thread {thread}: {count / total * each * 1e9:.0f} ns")
    for (thread, function, module), count in functions.most_common(chosen.top):
        print(f"{count / total * each * 1e9:8.1f} ns  {thread:<10} {function[:90]} ({module})")


if __name__ == "__main__":
    main()
