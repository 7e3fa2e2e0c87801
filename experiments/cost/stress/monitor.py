#!/usr/bin/env python3
"""Samples CPU time, memory and disk use of processes, from /proc alone.

usage: monitor.py [--interval 0.2] [--duration S] [--children] [--description TEXT] [-o FILE] PID …

Writes CSV: timestamp, description, pid, name, cpu_percent (of one core), memory_mb (resident, in
millions of bytes), disk_read_kb and disk_write_kb since the previous line. Ends when the processes have exited,
after the duration, or on SIGINT or SIGTERM.
"""
import argparse
import csv
import os
import signal
import sys
import time

COLUMNS = ["timestamp", "description", "pid", "name", "cpu_percent", "memory_mb", "disk_read_kb", "disk_write_kb"]
PAGE = os.sysconf("SC_PAGE_SIZE")


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def cpu_nanos(pid):
    """Returns the CPU time of all live threads in nanoseconds; threads that have exited do not count."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    texts = (read(f"/proc/{pid}/task/{task}/schedstat") for task in tasks)
    return sum(int(text.split()[0]) for text in texts if text)


def disk_bytes(pid):
    fields = dict(line.split(": ") for line in read(f"/proc/{pid}/io").splitlines() if ": " in line)
    return int(fields.get("read_bytes", 0)), int(fields.get("write_bytes", 0))


def with_children(pids):
    """Returns the processes and all of their descendants."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = read(f"/proc/{name}/stat")
            if stat:
                parents[int(name)] = int(stat.rsplit(")", 1)[1].split()[1])
    known = set(pids)
    while True:
        more = {pid for pid, parent in parents.items() if parent in known} - known
        if not more:
            return sorted(known & set(parents))
        known |= more


class Sample:
    """The usage of a process at one time."""

    def __init__(self, pid):
        self.at, self.cpu, self.disk = time.monotonic(), cpu_nanos(pid), disk_bytes(pid)
        statm = read(f"/proc/{pid}/statm").split()
        self.memory = int(statm[1]) * PAGE if statm else None
        self.name = read(f"/proc/{pid}/comm").strip()

    @property
    def running(self):
        return self.cpu is not None and bool(self.memory)


def row(pid, description, before, now):
    span = max(now.at - before.at, 1e-9)
    # Not negative: the time of a thread that exited is no longer included.
    used = max(0, now.cpu - before.cpu) / 1e9 / span * 100
    read_kb, write_kb = ((b - a) / 1000 for a, b in zip(before.disk, now.disk))
    return [f"{time.time():.3f}", description, pid, now.name, f"{used:.2f}", f"{now.memory / 1e6:.3f}",
            f"{read_kb:.1f}", f"{write_kb:.1f}"]


def write_samples(options, out):
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    before, due = {}, time.monotonic()
    end = due + options.duration if options.duration else None
    while end is None or due <= end:
        pids = with_children(options.pids) if options.children else options.pids
        samples = {pid: sample for pid in pids if (sample := Sample(pid)).running}
        if not samples:
            return
        for pid, sample in samples.items():
            if pid in before:
                writer.writerow(row(pid, options.description, before[pid], sample))
        out.flush()
        before, due = samples, due + options.interval
        time.sleep(max(0.0, due - time.monotonic()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interval", type=float, default=0.2)
    parser.add_argument("--duration", type=float)
    parser.add_argument("--children", action="store_true")
    parser.add_argument("--description", default="")
    parser.add_argument("-o", "--output")
    parser.add_argument("pids", type=int, nargs="+")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    if options.output:
        with open(options.output, "w", newline="") as out:
            write_samples(options, out)
    else:
        write_samples(options, sys.stdout)


if __name__ == "__main__":
    main()
