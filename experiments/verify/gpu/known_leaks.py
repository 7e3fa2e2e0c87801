#!/usr/bin/env python3
"""Traces programs with well-known leaks and their corrected versions, all at once, and scores the reports.

usage: known_leaks.py [--seconds N] [--only NAME...] VRAMSCOPE OUTDIR

Starts every program of `known_leaks/` twice, with its leak and corrected (`--fixed`). When all are warm, attaches
`vramscope trace` to the whole host, without options that concern capture or verdicts. Lines marked `# leaks here` are the
leaks of a program; a leak is right if its headline is such a line, and named if the line is elsewhere on the stack of a
suspect. Needs root, a GPU, nvcc, and PyTorch, Triton, CuPy and JAX; a program whose framework is missing is listed. The
reports, the recording and the text of `vramscope report` are left in OUTDIR. Exits with 1 if a leak is missed or a corrected
program is accused.
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from lib.processes import kill_children_at_exit, start, stop

PROGRAMS = pathlib.Path(__file__).resolve().parent / "known_leaks"
# Time for frameworks to load and warm up.
MAX_WARM_SECONDS = 150


class Program:
    """A running program, with its leak or corrected."""

    def __init__(self, source, command, is_fixed, directory):
        self.source, self.is_fixed = source, is_fixed
        self.name = f"{source.stem}{' (fixed)' if is_fixed else ''}"
        self.output = directory / f"{source.stem}{'-fixed' if is_fixed else ''}.txt"
        with open(self.output, "w", encoding="utf-8") as file:
            options = ["--fixed"] if is_fixed else []
            self.process = start([*command, *options, "--seconds", 600], stdout=file, stderr=subprocess.STDOUT, cwd=PROGRAMS)
        self.warm_at = None

    def is_warm(self):
        return "READY" in self.output.read_text(encoding="utf-8", errors="replace")

    def has_ended(self):
        return self.process.poll() is not None

    def lines(self):
        text = self.source.read_text(encoding="utf-8").splitlines()
        return {number for number, line in enumerate(text, 1) if line.rstrip().endswith("# leaks here")
                or line.rstrip().endswith("// leaks here")}


def commands(directory):
    """Returns the programs with their command lines."""
    found = {path: [sys.executable, "-B", path.name] for path in sorted(PROGRAMS.glob("*.py")) if path.stem != "steps"}
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    for path in sorted(PROGRAMS.glob("*.cu")):
        program = directory / path.stem
        done = subprocess.run([nvcc, "-g", "-O1", "-o", program, path], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{path.name}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        else:
            found[path] = [program]
    return found


def wait_until_warm(programs):
    """Waits for all programs. Returns those that run."""
    end = time.monotonic() + MAX_WARM_SECONDS
    waiting = list(programs)
    while waiting and time.monotonic() < end:
        waiting = [one for one in waiting if not one.has_ended() and not one.is_warm()]
        time.sleep(0.5)
    return [one for one in programs if not one.has_ended() and one.is_warm()]


def is_headline(leak, program):
    """Whether the leak is named by a marked line."""
    file = os.path.basename((leak.get("frame") or {}).get("file") or "")
    return file == program.source.name and bool(program.lines().intersection(leak["lines"]))


def has_line(suspect, program):
    """Whether a marked line is on the stack of a suspect."""
    return any(os.path.basename(frame.get("file") or "") == program.source.name and frame.get("line") in program.lines()
               for frame in suspect["frames"])


def children(pid):
    """Returns the pids of a process and its descendants."""
    pids = [pid]
    for one in pids:
        try:
            pids += [int(word) for task in os.listdir(f"/proc/{one}/task")
                     for word in pathlib.Path(f"/proc/{one}/task/{task}/children").read_text(encoding="ascii").split()]
        except OSError:
            continue
    return set(pids)


def score(program, pids, reports, began):
    """Returns the row of a program, and whether the verdict is right."""
    last = reports[-1]
    leaks = [leak for leak in last["leaks"] if pids.intersection(leak["pids"])]
    suspects = [one for one in last["suspects"] if one.get("pid") in pids]
    first = None
    for report in reports:
        if first is None and any(pids.intersection(leak["pids"]) for leak in report["leaks"]):
            first = (datetime.datetime.fromisoformat(report["time"]) - began).total_seconds()
    headlines = [leak for leak in leaks if is_headline(leak, program)]
    if program.is_fixed:
        verdict, right = ("accused", False) if leaks else ("not accused", True)
    elif headlines:
        verdict, right = "named", True
    elif any(has_line(one, program) for one in suspects):
        verdict, right = "line on the stack", True
    else:
        verdict, right = ("other line", False) if leaks else ("missed", False)
    named = [f"{leak['location']} ({leak['resource']}, {leak['confidence']})" for leak in leaks]
    seconds = "-" if first is None else f"{first:.0f}"
    return {"program": program.name, "verdict": verdict, "seconds": seconds, "named": named}, right


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="duration of the trace")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("vramscope")
    parser.add_argument("outdir", type=pathlib.Path)
    options = parser.parse_args()
    kill_children_at_exit()
    options.outdir.mkdir(parents=True, exist_ok=True)
    found = {path: command for path, command in commands(options.outdir).items() if not options.only or path.stem in options.only}
    programs = [Program(path, command, is_fixed, options.outdir) for path, command in found.items() for is_fixed in (False, True)]
    running = wait_until_warm(programs)
    for one in set(programs) - set(running):
        tail = one.output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        print(f"{one.name}: did not run: {tail}", file=sys.stderr)
    time.sleep(3)
    families = {one.name: children(one.process.pid) for one in running}
    reports_file, recording = options.outdir / "reports.jsonl", options.outdir / "recording.arrows"
    began = datetime.datetime.now(datetime.timezone.utc)
    subprocess.run([options.vramscope, "trace", "--json", "--interval", "2s", "--duration", f"{options.seconds}s", "--force", "-o",
                    reports_file, "--record", recording], check=True)
    for one in running:
        stop(one.process, signal.SIGKILL)
    with open(options.outdir / "report.txt", "w", encoding="utf-8") as file:
        subprocess.run([options.vramscope, "report", recording], stdout=file, stderr=file, check=False)
    with open(reports_file, encoding="utf-8") as file:
        reports = [json.loads(line) for line in file]
    rows = [score(one, families[one.name], reports, began) for one in running]
    print("| program | verdict | after, s | named |\n|---|---|---:|---|")
    for row, _ in rows:
        print(f"| {row['program']} | {row['verdict']} | {row['seconds']} | {'; '.join(row['named']) or '-'} |")
    result = {"rows": [row for row, _ in rows], "did_not_run": sorted(one.name for one in set(programs) - set(running))}
    (options.outdir / "known_leaks.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    sys.exit(0 if all(right for _, right in rows) else 1)


if __name__ == "__main__":
    main()
