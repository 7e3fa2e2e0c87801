#!/usr/bin/env python3
"""Checks which leaks of running PyTorch programs `vramscope trace -p PID` reports, how soon, and its false alarms.

usage: leaks.py [--duration SECONDS] [--only NAME...] [--without-torch] VRAMSCOPE OUTDIR

Starts each program of `leak_programs/`, waits until it is warm and 5 seconds more, then attaches. Lines marked
`# leaks here` are the leaks of a program; a suspect is right if its stack contains one of them. In a program that
leaks tensors, memory that PyTorch's allocator takes from the driver at another line is listed separately: the
allocator grows at the line that happens to allocate next. Needs root, a GPU and PyTorch. The reports (NAME.jsonl) and
the last of each (NAME.json) are left in OUTDIR. Exits with 1 if a leak is missed or a suspect is wrong.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "leak_programs")
NAMES = ["kept_losses", "ctypes_leak", "bounded_cache", "clean"]


def leaking_lines(path):
    with open(path, encoding="utf-8") as file:
        return [number for number, line in enumerate(file, 1) if line.rstrip().endswith("# leaks here")]


def own_frames(entry, script):
    return [frame for frame in entry["frames"] if os.path.basename(frame.get("file") or "") == script]


def location(entry, script):
    """Returns the innermost line of the program itself, or else of any Python file."""
    frames = own_frames(entry, script) or [frame for frame in entry["frames"] if frame.get("language") == "python"]
    if frames:
        return f"{os.path.basename(frames[0]['file'] or '?')}:{frames[0]['line']} {frames[0]['function']}"
    return next((frame["function"] for frame in entry["frames"] if frame["function"]), entry.get("site", "?"))


def is_right(entry, script, lines):
    return any(frame.get("line") in lines for frame in own_frames(entry, script))


class Program:
    """A running program and its output."""

    def __init__(self, path, seconds):
        self.child = subprocess.Popen([sys.executable, path, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True)
        self.lines, self.ready = [], threading.Event()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.child.stdout:
            self.lines.append(line.strip())
            if line.strip() == "READY":
                self.ready.set()

    def wait_ready(self):
        end = time.monotonic() + 180
        while not self.ready.wait(0.2):
            if self.child.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the program did not become ready (exit code {self.child.poll()})")

    def stop(self):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()


def trace(options, name):
    """Traces one program. Returns all reports and the start time of the trace."""
    program = Program(os.path.join(PROGRAMS, name + ".py"), options.duration + 60)
    try:
        program.wait_ready()
        time.sleep(5)
        output = os.path.join(options.outdir, name + ".jsonl")
        command = [options.vramscope, "trace", "-p", str(program.child.pid), "--json", "--interval", "2s",
                   "--duration", f"{options.duration}s", "--stacks", "full", "--force", "-o", output]
        if not options.without_torch:
            command.append("--allocators")
        began = datetime.datetime.now(datetime.timezone.utc)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.duration + 60)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-800:]}")
        if program.child.poll() is not None:
            raise RuntimeError(f"the program exited before the trace ended: {program.lines[-3:]}")
    finally:
        program.stop()
    with open(output, encoding="utf-8") as file:
        reports = [json.loads(line) for line in file]
    if not reports or "suspects" not in reports[-1]:
        raise RuntimeError("the reports have no `suspects`")
    with open(os.path.join(options.outdir, name + ".json"), "w", encoding="utf-8") as file:
        json.dump(reports[-1], file, indent=1)
    return reports, began


def score(name, reports, began):
    """Returns a row of the table, and whether all suspects are right."""
    script = name + ".py"
    lines = leaking_lines(os.path.join(PROGRAMS, script))
    # All programs leak tensors, except one that calls the driver directly.
    leaks = "memory" if name == "ctypes_leak" else "tensors"

    def describe(entry):
        return f"{location(entry, script)} ({entry['resource']} {entry.get('kind') or ''}, {entry.get('confidence')})"

    def wrong(entry):
        return not is_right(entry, script, lines)

    def indirect(entry):
        return bool(lines) and leaks == "tensors" and entry["resource"] == "memory" and wrong(entry)

    last = reports[-1]["suspects"]
    right = [entry for entry in last if not wrong(entry)]
    false = [entry for entry in last if wrong(entry) and not indirect(entry)]
    first, early = None, {}
    for report in reports:
        at = (datetime.datetime.fromisoformat(report["time"]) - began).total_seconds()
        # Symbols may be resolved after the verdict.
        for entry in (entry for entry in report["suspects"] if entry["frames"]):
            if not wrong(entry):
                first = at if first is None else first
            elif not indirect(entry):
                early.setdefault((location(entry, script), entry["resource"]), at)
    final = {(location(entry, script), entry["resource"]) for entry in false}
    withdrawn = [f"{line} ({resource}) at {at:.0f} s" for (line, resource), at in early.items()
                 if (line, resource) not in final]
    found = not lines or bool(right)
    cells = [
        name,
        ", ".join(f"{script}:{line}" for line in lines) or "nothing",
        "; ".join(sorted({describe(entry) for entry in right})) or ("-" if not lines else "**missed**"),
        f"{first:.0f}" if first is not None else "-",
        "; ".join(sorted({f"**{describe(entry)}**" for entry in false})) or "-",
        "; ".join(withdrawn) or "-",
        "; ".join(sorted({describe(entry) for entry in last if indirect(entry)})) or "-",
        str(reports[-1].get("lost_events", "?")),
    ]
    return f"| {' | '.join(cells)} |", found and not false


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--duration", type=int, default=60)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--without-torch", action="store_true", help="trace without --allocators: driver memory only")
    parser.add_argument("vramscope")
    parser.add_argument("outdir")
    options = parser.parse_args()
    os.makedirs(options.outdir, exist_ok=True)
    print("| program | leaks | reported | first reported after, s | false alarms | withdrawn "
          "| driver memory at other lines | lost |")
    print("|---|---|---|---:|---|---|---|---:|")
    all_right = True
    for name in options.only:
        try:
            row, right = score(name, *trace(options, name))
        except (RuntimeError, subprocess.TimeoutExpired, OSError, ValueError) as error:
            row, right = f"| {name} | could not run: {error} | | | | | | |", False
        print(row, flush=True)
        all_right = all_right and right
    sys.exit(0 if all_right else 1)


if __name__ == "__main__":
    main()
