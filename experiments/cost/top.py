#!/usr/bin/env python3
"""Measures `vramscope top` with many processes and sites: share of a core, time until keys are answered.

A recording of 500 processes with 20 sites each is replayed as fast as it was made, at one screen a second, on a
pseudo-terminal: once with the list of processes, once with the sites of a process. The CPU time includes decoding the
recording and the ledger. Needs neither root nor a GPU; `./dev bench top` runs it.
"""

import argparse
import json
import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TICK = os.sysconf("SC_CLK_TCK")

# Targets of the project.
MAX_SHARE_PERCENT = 3.0
MAX_ANSWER_MS = 50.0


def cpu_seconds(pid):
    """Returns the CPU time of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class View:
    """The program on a terminal."""

    def __init__(self, command, width, height):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLUMNS=str(width), LINES=str(height))
            subprocess.run(["stty", "cols", str(width), "rows", str(height)], check=True)
            os.execv(command[0], command)

    def read(self, seconds):
        """Returns the number of bytes that were drawn within some time."""
        end, count = time.monotonic() + seconds, 0
        while (rest := end - time.monotonic()) > 0:
            if select.select([self.terminal], [], [], rest)[0]:
                count += len(os.read(self.terminal, 1 << 20))
        return count

    def answer(self, key):
        """Presses a key and returns the milliseconds until something is drawn."""
        while select.select([self.terminal], [], [], 0.01)[0]:
            os.read(self.terminal, 1 << 20)
        start = time.monotonic()
        os.write(self.terminal, key)
        select.select([self.terminal], [], [], 5)
        return (time.monotonic() - start) * 1000

    def measure(self, seconds):
        """Returns the share of a core in percent, and the bytes drawn per second."""
        before, start = cpu_seconds(self.pid), time.monotonic()
        drawn = self.read(seconds)
        elapsed = time.monotonic() - start
        return (cpu_seconds(self.pid) - before) / elapsed * 100, drawn / elapsed

    def memory(self):
        """Returns the resident memory in MiB."""
        with open(f"/proc/{self.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024

    def close(self):
        os.write(self.terminal, b"q")
        os.waitpid(self.pid, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="how long each state is measured")
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--sites", type=int, default=20, help="of each process")
    parser.add_argument("--vramscope", default=os.path.join(ROOT, "target/release/vramscope"))
    parser.add_argument("--generator", default=os.path.join(ROOT, "target/release/examples/many_processes"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        file = os.path.join(directory, "many.arrows")
        numbers = [options.processes, options.sites, options.seconds * 3 + 90]
        subprocess.run([options.generator, *map(str, numbers), file], check=True)
        view = View([options.vramscope, "top", file, "--interval", "1s"], 200, 60)
        # Growth is judged after 30 seconds, and all sites have allocated by then.
        view.read(40)
        list_share, list_bytes = view.measure(options.seconds)
        keys = [view.answer(key) for key in [b"\x1b[B", b"s", b"2", b"1", b"u", b"u"] * 10]
        view.answer(b"\r")
        view.read(2)
        sites_share, sites_bytes = view.measure(options.seconds)
        memory = view.memory()
        view.close()
    result = {
        "processes": options.processes,
        "sites": options.processes * options.sites,
        "processes_cpu_percent": round(list_share, 2),
        "sites_cpu_percent": round(sites_share, 2),
        "drawn_bytes_per_second": [round(list_bytes), round(sites_bytes)],
        "answer_ms_median": round(statistics.median(keys), 1),
        "answer_ms_p95": round(sorted(keys)[int(len(keys) * 0.95)], 1),
        "memory_mib": round(memory),
    }
    print(json.dumps(result, indent=2))
    is_good = max(list_share, sites_share) < MAX_SHARE_PERCENT and statistics.median(keys) < MAX_ANSWER_MS
    sys.exit(0 if is_good else 1)


main()
