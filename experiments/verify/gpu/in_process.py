#!/usr/bin/env python3
"""Compares in-process tracing (`run`) with probes (`trace`) and with the programs' own values, on a real GPU.

usage: in_process.py --vramscope PATH [--out DIR] [--minutes N] [--only PART …]

Needs root, a GPU and PyTorch; uses CuPy, JAX, nsys and compute-sanitizer if they are installed. Parts:

values   programs of programs/ under `trace`, under `run`, and under `run` as an unprivileged user, against their own account
calls    time per call of a Python and of a C program: untraced, under `trace` and `run`, without stacks and with known ones
cost     time per PyTorch step: untraced, under `trace` and `run` with and without tensors, with PyTorch's recorder
beside   `run` together with PyTorch's profiler, Nsight Systems and compute-sanitizer

Exits with 1 if a value of `run` differs from the program's own or from that of `trace`, or if a program fails.
"""
import argparse
import concurrent.futures
import functools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

from run import PROGRAMS, Verification

UNPRIVILEGED = {"user": 65534, "group": 65534, "extra_groups": []}
SECONDS_PER_STEP_RUN = 4

# Pairs of allocation and free below a call stack of this depth.
PAIRS_DIR = os.path.join(os.path.dirname(PROGRAMS), "..", "..", "cost", "stacks")
DEPTH, PAIRS, CALLS_PER_PAIR = 30, 20000, 2

# Programs with their environment; the name of a variant follows the colon.
VALUES = {
    "torch_native": {},
    "torch_native:expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "torch_async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "torch_graph": {},
    "torch_threads": {},
    "cupy_pool": {},
    "jax_pool": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
}

PARTS = ["values", "beside", "calls", "cost"]

# Options of vramscope, and the argument for PyTorch's own recorder.
MODES = {
    "untraced": (None, None),
    "trace": (["trace"], None),
    "run": (["run"], None),
    "run --stacks off": (["run", "--stacks", "off"], None),
    "run --allocators=totals": (["run", "--allocators=totals"], None),
    "run --allocators=full": (["run", "--allocators=full"], None),
    "trace --allocators=full": (["trace", "--allocators=full"], None),
    "recorder, Python stacks": (None, "python"),
    "recorder, all stacks": (None, "all"),
}


# Tracing of single calls.
CALL_MODES = {
    "untraced": None,
    "trace --stacks off": ["trace", "--stacks", "off"],
    "run --stacks off": ["run", "--stacks", "off"],
    "trace": ["trace"],
    "run": ["run"],
}


def script(name):
    return [sys.executable, os.path.join(PROGRAMS, name + ".py")]


def is_installed(module):
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def compare_with_program(name, program, environment, source):
    # Frameworks write caches into the home directory, which this user does not have.
    home = {"HOME": source.out} if source.identity else {}
    source.compare(name.replace(":", "_"), script(program), {**environment, **home})


class Comparison:
    """Runs the parts and collects rows, notes and failures."""

    def __init__(self, vramscope, out, end):
        self.vramscope, self.out, self.end = vramscope, out, end
        self.failures, self.costs, self.calls_ns, self.notes = [], {}, {}, []
        self.sources = {
            "trace": self.source("trace", "trace"),
            "run": self.source("run", "run"),
            "run, unprivileged": self.source("unprivileged", "run", UNPRIVILEGED),
        }

    def source(self, name, verb, identity=None):
        path = os.path.join(self.out, name)
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
        return Verification(self.vramscope, path, verb, identity)

    def remaining(self):
        return self.end - time.monotonic()

    def failed(self, text):
        self.failures.append(text)
        print("FAILED", text, flush=True)

    # -- values --

    def values(self):
        for name, environment in VALUES.items():
            program = name.split(":")[0]
            framework = program.split("_")[0]
            if framework in ("cupy", "jax") and not is_installed(framework):
                self.notes.append(f"{name}: {framework} is not installed")
                continue
            compare = functools.partial(compare_with_program, name, program, environment)
            # Not next to the probes of `trace`, which hide stacks of the others.
            with concurrent.futures.ThreadPoolExecutor() as pool:
                list(pool.map(compare, [self.sources["run"], self.sources["run, unprivileged"]]))
            compare(self.sources["trace"])
        probes = {row[:2]: row[3] for row in self.sources["trace"].rows}
        for label, source in self.sources.items():
            for program, point, oracle, ours, explained in source.rows:
                # Libraries allocate outside of the pools of CuPy and JAX.
                is_explained = explained.endswith("outside of the pool")
                if ours != oracle and not is_explained:
                    self.failed(f"{label}, {program}, {point}: {ours}, the program says {oracle}")
                if ours != probes.get((program, point)):
                    self.failed(f"{label}, {program}, {point}: {ours}, trace {probes.get((program, point))}")
            for note in source.notes:
                if "exact=False" in note or ": exit " in note or "no report" in note:
                    self.failed(f"{label}: {note}")

    # -- calls --

    def programs_of_calls(self):
        """Returns the programs that time pairs of calls. The C program needs a compiler."""
        programs = {"Python": [sys.executable, os.path.join(PAIRS_DIR, "pairs.py")]}
        program = os.path.join(self.out, "pairs")
        compiler = shutil.which("gcc") or shutil.which("cc")
        source = os.path.join(PAIRS_DIR, "pairs.c")
        if compiler and subprocess.run([compiler, "-O1", "-o", program, source, "-l:libcuda.so.1"], check=False).returncode == 0:
            programs["C"] = [program]
        else:
            self.notes.append("calls: no C compiler")
        return programs

    def calls(self):
        for _ in range(3):
            for name, program in self.programs_of_calls().items():
                for mode, options in CALL_MODES.items():
                    command = [*program, str(DEPTH), str(PAIRS)]
                    if options:
                        command = [self.vramscope, options[0], "--json", "-o", "/dev/null", *options[1:], "--", *command]
                    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
                    found = re.search(r"([\d.]+) ns per pair", done.stdout)
                    if not found:
                        self.failed(f"calls, {name}, {mode}: exit {done.returncode}: {done.stderr[-300:]}")
                        continue
                    self.calls_ns.setdefault(name, {}).setdefault(mode, []).append(float(found[1]) / CALLS_PER_PAIR)

    # -- cost --

    def step(self, program, options, recorder):
        """Returns the median time of a step; the first one is a warm-up."""
        command = [*script(program), str(SECONDS_PER_STEP_RUN), *([recorder] if recorder else [])]
        if options:
            verb, *rest = options
            command = [self.vramscope, verb, "--json", "-o", "/dev/null", *rest, "--", *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            self.failed(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-300:]}")
            return None
        steps = [json.loads(line[5:])[1] for line in done.stdout.splitlines() if line.startswith("STEP ")]
        return statistics.median(steps[1:]) if len(steps) > 1 else None

    def cost(self):
        for number in range(2):
            for program in ("step_torch", "step_transformer"):
                for mode, (options, recorder) in MODES.items():
                    if number > 0 and self.remaining() < 60:
                        self.notes.append(f"round {number + 1} of the costs is incomplete")
                        return
                    seconds = self.step(program, options, recorder)
                    if seconds:
                        self.costs.setdefault(program, {}).setdefault(mode, []).append(seconds)
                        print(f"{program}, {mode}: {seconds * 1e3:.3f} ms", flush=True)

    # -- other tools --

    def together(self, name, command, outer=()):
        """Runs a command with `run`, inside of another tool if `outer` is given. Returns the last report."""
        report = os.path.join(self.out, "beside.jsonl")
        whole = [*outer, self.vramscope, "run", "--json", "--kernels", "--force", "-o", report, "--", *command]
        try:
            done = subprocess.run(whole, capture_output=True, text=True, timeout=100, check=False)
        except subprocess.TimeoutExpired:
            self.failed(f"{name}: no end within 100 s")
            return None
        with open(report) as lines:
            last = json.loads(lines.read().strip().split("\n")[-1])
        processes = [p for p in last["processes"] if p["allocations_total"]]
        self.notes.append(f"{name}: exit {done.returncode}, exact {last['exact']}, traced processes {len(processes)}, "
                          f"allocations {sum(p['allocations_total'] for p in processes)}")
        print(self.notes[-1], flush=True)
        if done.returncode != 0:
            self.failed(f"{name}: exit {done.returncode}: {done.stderr[-300:]}")
        counts = re.search(r"^COUNTS (.*)$", done.stdout, re.MULTILINE)
        if counts:
            theirs = sum(json.loads(counts[1]).values())
            ours = sum(p.get("launches_total", 0) for p in last["processes"])
            self.notes.append(f"{name}: launches: profiler {theirs}, ours {ours}")
        return last

    def beside(self):
        program = script("kernels_torch")
        self.together("PyTorch's profiler", program)
        if shutil.which("nsys"):
            nsys = ["nsys", "profile", "--trace=cuda", "--force-overwrite=true", "-o", os.path.join(self.out, "nsys")]
            # Whichever tool starts the other one sets the variable last.
            self.together("run inside of nsys", script("torch_threads"), outer=nsys)
            self.together("nsys inside of run", [*nsys, *script("torch_threads")])
        else:
            self.notes.append("nsys is not installed")
        if shutil.which("compute-sanitizer") and is_installed("cupy"):
            self.together("compute-sanitizer inside of run", ["compute-sanitizer", *script("cupy_pool")])
        else:
            self.notes.append("compute-sanitizer or CuPy is not installed")

    def write(self):
        with open(os.path.join(self.out, "in_process.md"), "w") as page:
            page.write("| source | program | point | oracle | vramscope | difference | note |\n|---|---|---|---:|---:|---:|---|\n")
            for label, source in self.sources.items():
                page.writelines(
                    f"| {label} | {program} | {point} | {oracle} | {ours} | {ours - oracle} | {explained} |\n"
                    for program, point, oracle, ours, explained in source.rows)
            page.write(f"\n| calls, stack of {DEPTH} | mode | time per call | added |\n|---|---|---:|---:|\n")
            for program, modes in self.calls_ns.items():
                plain = min(modes.get("untraced", [float("nan")]))
                page.writelines(
                    f"| {program} | {mode} | {min(times):.0f} ns | {min(times) - plain:.0f} ns |\n" for mode, times in modes.items())
            page.write("\n| program | mode | time per step | ratio |\n|---|---|---:|---:|\n")
            for program, modes in self.costs.items():
                plain = min(modes.get("untraced", [float("nan")]))
                page.writelines(
                    f"| {program} | {mode} | {min(times) * 1e3:.3f} ms | {min(times) / plain:.3f} |\n"
                    for mode, times in modes.items())
            page.write("\n")
            page.writelines(f"- {note}\n" for note in self.notes)
            page.writelines(f"- FAILED: {failure}\n" for failure in self.failures)
        with open(page.name) as text:
            print(text.read())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--out", default="verification")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--only", nargs="*", choices=PARTS)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    out, end = os.path.abspath(options.out), time.monotonic() + options.minutes * 60
    comparison = Comparison(os.path.abspath(options.vramscope), out, end)
    for part in options.only or PARTS:
        try:
            getattr(comparison, part)()
        except Exception as error:  # noqa: BLE001 - a failing part must not hide the results of the others
            comparison.failed(f"{part}: {type(error).__name__}: {error}")
    comparison.write()
    sys.exit(1 if comparison.failures else 0)


if __name__ == "__main__":
    main()
