#!/usr/bin/env python3
"""Profiles the tracer: its functions by nanoseconds of CPU time per event.

usage: profile.py [--rate max] [--free-ratio 1.0] [--stacks off] [--seconds 5] [--top 25] …

Traces the workload `spam` and samples the tracer with perf (Debian: linux-perf). The first second, in which
symbols are resolved, is left out. Needs root.
"""
import collections
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(os.path.dirname(HERE)))

import cells
from lib.paths import Setup, argument_parser
from lib.processes import Lines, Usage, kill_children_at_exit, start, stop, wait_attached


def sample(setup, options, directory):
    """Returns CPU seconds per event, events per second, and the file that perf wrote."""
    cell = {"rate": options.rate, "free_ratio": options.free_ratio}
    target = cells.spam(setup, cell, directory, options.seconds + 1)
    lines = Lines(target.stdout)
    lines.wait_for(lambda line: line.strip() == "ready", 60, "the target")
    tracer = start([setup.vramscope, "trace", "-v", "--json", "--stacks", options.stacks, "--interval", "10h",
                    *setup.driver_option(), "-p", target.pid, "--force", "-o",
                    os.path.join(directory, "reports.jsonl")],
                   stderr=subprocess.PIPE, text=True)
    wait_attached(Lines(tracer.stderr))
    target.stdin.write("go\n")
    target.stdin.flush()
    time.sleep(1)
    usage, data = Usage(tracer.pid), os.path.join(directory, "perf.data")
    recorder = start(["perf", "record", "-q", "-e", "cpu-clock", "-F", "4000", "-o", data, "-p", tracer.pid],
                     stderr=subprocess.DEVNULL)
    printed = lines.wait_for(cells.SPAM_RESULT.search, options.seconds + 120, "the results of the target")
    used = usage.so_far()
    stop(recorder)
    target.wait(300)
    stop(tracer, timeout=120)
    events, seconds = cells.SPAM_RESULT.search(printed).groups()[:2]
    rate = int(events) / float(seconds)
    return used["cpu_s"] / (rate * used["seconds"]), rate, data


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--rate", default="max")
    parser.add_argument("--free-ratio", type=float, default=1.0)
    parser.add_argument("--stacks", default="off")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--top", type=int, default=25)
    options = parser.parse_args()
    kill_children_at_exit()
    setup = Setup(options)
    with tempfile.TemporaryDirectory() as directory:
        each, rate, data = sample(setup, options, directory)
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
    for (thread, function, module), count in functions.most_common(options.top):
        print(f"{count / total * each * 1e9:8.1f} ns  {thread:<10} {function[:90]} ({module})")


if __name__ == "__main__":
    main()
