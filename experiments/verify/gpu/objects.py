#!/usr/bin/env python3
"""Compares the CUDA objects that `vramscope trace` reports with the counts of the programs, on a real GPU.

usage: objects.py --vramscope PATH [--out DIR] [--count N]

Needs root, a GPU and Python; uses PyTorch if it is installed. Prints a table and fails if a number differs.
"""
import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FIELDS = ["live", "created", "destroyed", "released"]


def trace(vramscope, out, name, command, extra=()):
    report = os.path.join(out, name + ".jsonl")
    run = subprocess.run(
        [vramscope, "trace", "--json", "--interval", "200ms", "--force", "-o", report, *extra, "--", *command],
        capture_output=True, text=True, timeout=300, check=False)
    with open(report) as lines:
        reports = [json.loads(line) for line in lines]
    print(run.stderr.strip(), file=sys.stderr)
    return run, reports[-1]


def printed(run, word):
    """Returns the JSON that a program printed after a word."""
    lines = [line for line in run.stdout.splitlines() + run.stderr.splitlines() if line.startswith(word + " ")]
    return json.loads(lines[-1][len(word) + 1:]) if lines else None


def reported(report):
    """Returns the objects by kind, and the process that has most of them."""
    process = max(report["processes"], key=lambda process: len(process["objects"]))
    return {row["kind"]: row for row in process["objects"]}, process


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--out", default="/tmp/objects")
    parser.add_argument("--count", default="20")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    wrong = 0

    program = os.path.join(HERE, "programs", "objects.py")
    for stacks in ["full", "off"]:
        run, report = trace(options.vramscope, options.out, "objects_" + stacks,
                            [sys.executable, program, options.count], ["--stacks", stacks])
        expected = printed(run, "EXPECT")
        if expected is None:
            sys.exit(f"the program failed: {run.stderr[-2000:]}")
        found, process = reported(report)
        print(f"--stacks {stacks}: exact {report['exact']}, lost objects {report['lost_objects']}")
        print(f"{'kind':14} {'field':10} {'program':>8} {'report':>8}")
        for kind, counts in sorted(expected.items()):
            row = found.pop(kind, dict.fromkeys(FIELDS, 0))
            for field, want in zip(FIELDS, counts):
                mark = "" if row[field] == want else "  DIFFERS"
                wrong += bool(mark)
                print(f"{kind:14} {field:10} {want:>8} {row[field]:>8}{mark}")
        for kind, row in found.items():
            wrong += 1
            print(f"{kind:14} was not created by the program: {row}  DIFFERS")
        unknown = sum(row["unmatched_destroys"] for row in process["objects"])
        wrong += bool(unknown)
        print(f"destroyed without a known creation: {unknown}")

    try:
        import torch  # noqa: F401
    except ImportError:
        print("PyTorch is not installed: skipped")
    else:
        program = os.path.join(HERE, "programs", "objects_torch.py")
        run, report = trace(options.vramscope, options.out, "objects_torch", [sys.executable, program])
        least = printed(run, "EXPECT_AT_LEAST")
        found, process = reported(report)
        wrong += run.returncode != 0 or least is None
        for kind, row in found.items():
            print(f"torch: {kind:14} " + ", ".join(f"{field} {row[field]}" for field in FIELDS))
        for kind, want in (least or {}).items():
            have = found.get(kind, {}).get("created", 0)
            mark = "" if have >= want else "  DIFFERS"
            wrong += bool(mark)
            print(f"torch: {kind} created at least {want}: {have}{mark}")
    sys.exit(f"{wrong} numbers differ" if wrong else 0)


main()
