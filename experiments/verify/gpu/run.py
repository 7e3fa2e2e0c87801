#!/usr/bin/env python3
"""Runs each program under `vramscope trace` on a real GPU and compares the reports with independent values.

usage: run.py --vramscope PATH [--out DIR] [--only NAME …]

Needs root, a GPU, nvcc, PyTorch; uses CuPy, JAX and compute-sanitizer if they are installed. Prints a table
(program, point, oracle, vramscope, difference in bytes) and writes it with facts of the machine to
DIR/verification.md, next to the raw reports.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(os.path.dirname(HERE)))

from lib import machine

PROGRAMS = os.path.join(HERE, "programs")


def seconds(text):
    return datetime.datetime.fromisoformat(text).timestamp()


class Verification:
    """Runs the programs and collects the rows and notes of the page.

    `verb`: `trace`, or `run` for in-process tracing. `identity`: user and groups of the processes, as for
    subprocess.run.
    """

    def __init__(self, vramscope, out, verb="trace", identity=None):
        self.vramscope, self.out, self.rows, self.notes = vramscope, out, [], []
        self.verb, self.identity = verb, identity or {}

    def build(self, name, *options):
        binary = os.path.join("/tmp", name + ("_" + "_".join(o.strip("-") for o in options) if options else ""))
        source = os.path.join(PROGRAMS, name + ".cu")
        subprocess.run(["nvcc", "-arch=sm_90", "-o", binary, source, *options], check=True)
        return binary

    def trace(self, name, command, env=None, extra=()):
        """Runs a command under the tracer. Returns its output lines and all reports."""
        report = os.path.join(self.out, name + ".jsonl")
        run = subprocess.run(
            [self.vramscope, self.verb, "--json", "--interval", "200ms", "--top", "100000", "--force", "-o", report,
             "--record", os.path.join(self.out, name + ".arrows"), *extra, "--", *command],
            env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=300, check=False, **self.identity)
        with open(report) as lines:
            reports = [json.loads(line) for line in lines]
        if run.returncode != 0:
            self.notes.append(f"{name}: exit {run.returncode}: {run.stderr.strip()[-400:]}")
        return run.stdout.splitlines(), reports

    def add(self, program, point, oracle, ours, explained=""):
        self.rows.append((program, point, oracle, ours, explained))
        print(f"{program:24} {point:28} {oracle:>14} {ours:>14} {ours - oracle:>12} {explained}", flush=True)

    # -- comparison with the accounts that programs print --

    def holds(self, name, lines, reports):
        """Yields each account that a program printed, with a report of the time after it."""
        for line in lines:
            if not line.startswith("HOLD "):
                continue
            account = json.loads(line[5:])
            inside = [r for r in reports if 0.5 < seconds(r["time"]) - account["time"] < 1.4]
            if not inside:
                self.notes.append(f"{name}: no report during `{account['what']}`")
                continue
            yield account, inside[len(inside) // 2]

    def compare(self, name, command, env=None):
        lines, reports = self.trace(name, command, env)
        for account, report in self.holds(name, lines, reports):
            process = next(p for p in report["processes"] if p["live_allocations"] or len(report["processes"]) == 1)
            self.compare_one(name, account, process, report)
        exact = all(r["exact"] for r in reports)
        lost = reports[-1]["lost_events"]
        if not exact or lost:
            self.notes.append(f"{name}: exact={exact}, lost={lost}")
        for report in reports:
            for oom in report.get("out_of_memory", []):
                self.add(name, "out of memory: requested", 4 << 40, oom["requested_bytes"])
        return reports

    def compare_one(self, name, account, process, report):
        what = account["what"]
        allocations = [a for t in process["threads"] for a in t["allocations"]]
        kinds = process["live_bytes_by_kind"]
        if account.get("addresses"):
            inside = {hex(a) for a in account["addresses"]}
            ours = sum(a["bytes"] for a in allocations if a["address"] in inside)
            others = [a for a in allocations if a["address"] not in inside and a["kind"] == "device"]
            extra = f"plus {sum(a['bytes'] for a in others)} in {len(others)} by libraries" if others else ""
            self.add(name, what, account["reserved"], ours, extra)
        elif "reserved" in account:
            self.add(name, what, account["reserved"], kinds.get("physical", 0),
                     f"plus {kinds.get('device', 0)} device by libraries")
        elif "pool_reserved" in account:
            pools = process.get("pools", [])
            self.add(name, what + ": reserved", account["pool_reserved"],
                     sum(p.get("reserved_bytes", 0) for p in pools), "as the driver reported it to the program")
            self.add(name, what + ": used", account["used"], sum(p["used_bytes"] for p in pools))
        elif "pool_total" in account:
            if account["pool_total"] is not None:
                ours = kinds.get("device", 0) + kinds.get("async", 0) + kinds.get("physical", 0)
                outside = ours - account["pool_total"]
                self.add(name, what, account["pool_total"], ours,
                         f"{outside} by libraries outside of the pool" if outside else "")
        elif "kind" in account:
            self.add(name, what, account["bytes"], kinds.get(account["kind"], 0))
        if "untracked_bytes" in process:
            driver = sum(d.get("driver_bytes", 0) for d in process["devices"])
            self.notes.append(f"{name}, {what}: driver-reported {driver}, traced {process['live_bytes']}, "
                              f"untracked {process['untracked_bytes']}")

    # -- programs --

    def plain(self):
        for name, options in (("plain", ()), ("plain", ("-cudart", "shared"))):
            binary = self.build(name, *options)
            label = "static runtime" if not options else "shared runtime"
            lines, reports = self.trace(os.path.basename(binary), [binary])
            last = reports[-1]["processes"][0]
            pitched = int(re.search(r"pitched (\d+)", "\n".join(lines)).group(1))
            self.add("plain.cu, " + label, "at exit: device", (8 << 20) + pitched, last["live_bytes"])
            self.add("plain.cu, " + label, "at exit: managed", 4 << 20, last["live_bytes_by_kind"].get("managed", 0))
            self.add("plain.cu, " + label, "at exit: pinned", 2 << 20, last["live_bytes_by_kind"].get("pinned", 0))
            self.add("plain.cu, " + label, "peak", (40 << 20) + pitched, last["peak_bytes"])

    def sanitizer(self):
        binary = self.build("leaks")
        _, reports = self.trace("leaks", [binary])
        last = reports[-1]["processes"][0]
        command = ["compute-sanitizer", "--leak-check", "full", "--tool", "memcheck", binary]
        try:
            text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            text = ""
        with open(os.path.join(self.out, "leaks.sanitizer.txt"), "w") as file:
            file.write(text)
        theirs = [int(n.replace(",", "")) for n in re.findall(r"Leaked ([\d,]+) bytes", text)]
        if not theirs:
            self.notes.append("compute-sanitizer printed no leaks")
            return
        kinds = last["live_bytes_by_kind"]
        ours = sum(kinds.get(k, 0) for k in ("device", "managed", "array"))
        array = kinds.get("array", 0)
        self.add("leaks.cu", "sanitizer's leaks, bytes", sum(theirs), ours,
                 f"the sanitizer counts elements of the array: {array // 4} for {array} bytes")
        count = sum(last["live_allocations_by_kind"].get(k, 0) for k in ("device", "managed", "array"))
        self.add("leaks.cu", "sanitizer's leaks, count", len(theirs), count)

    def driver(self):
        binary = self.build("driver_api", "-lcuda")
        self.compare("driver_api", [binary])

    def python(self, program, label=None, **env):
        self.compare(label or program, [sys.executable, os.path.join(PROGRAMS, program + ".py")], env)

    def four(self):
        """Traces four processes at once with one tracer."""
        report = os.path.join(self.out, "four.jsonl")
        tracer = subprocess.Popen([self.vramscope, "trace", "--json", "--interval", "200ms", "--top", "100000",
                                   "--force", "-o", report, "-a"], stderr=subprocess.DEVNULL)
        time.sleep(2)
        command = [sys.executable, os.path.join(PROGRAMS, "torch_native.py")]
        targets = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        outputs = [target.communicate()[0].splitlines() for target in targets]
        time.sleep(1)
        tracer.send_signal(2)
        tracer.wait()
        with open(report) as lines:
            reports = [json.loads(line) for line in lines]
        for number, (target, lines) in enumerate(zip(targets, outputs)):
            for account, found in self.holds("four", lines, reports):
                process = next(p for p in found["processes"] if p["pid"] == target.pid)
                self.compare_one(f"process {number + 1} of four", account, process, found)

    def late(self):
        """Attaches to a running PyTorch program."""
        target = subprocess.Popen([sys.executable, os.path.join(PROGRAMS, "torch_late.py")],
                                  stdout=subprocess.PIPE, text=True)
        for line in target.stdout:
            if line.startswith("READY"):
                break
        report = os.path.join(self.out, "late.jsonl")
        tracer = subprocess.Popen([self.vramscope, "trace", "--json", "--interval", "200ms", "--top", "100000",
                                   "--force", "-o", report, "-p", str(target.pid)], stderr=subprocess.DEVNULL)
        lines = list(target.stdout)
        target.wait()
        tracer.wait()
        with open(report) as text:
            reports = [json.loads(line) for line in text]
        for account, found in self.holds("late", lines, reports):
            process = next(p for p in found["processes"] if p["pid"] == target.pid)
            devices = [d for d in process["devices"] if d["live_bytes"]]
            self.add("late attach", account["what"], account["bytes"], process["live_bytes"],
                     "allocated since then, on " + ", ".join(f"device {d['device']}" for d in devices))
            if "untracked_bytes" in process:
                self.notes.append(f"late attach: {process['untracked_bytes']} bytes untracked, "
                                  f"of which {account['before']} allocated before")

    def cost(self, label, command, verb="trace", blocks=6, block=4.5):
        """Measures the time per step, alternating with and without a tracer in one run of the program."""
        target = subprocess.Popen([*command, str(blocks * block + 2)], stdout=subprocess.PIPE, text=True)
        for line in target.stdout:
            if line.startswith("READY"):
                break
        spans = []
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(target.stdout))
        reader.start()
        time.sleep(1)
        for number in range(blocks):
            traced = number % 2 == 1
            tracer = None
            if traced:
                tracer = subprocess.Popen([self.vramscope, verb, "--json", "-o", "/dev/null", "-p", str(target.pid)],
                                          stderr=subprocess.DEVNULL)
                # In the first second the tracer learns the contexts of the threads.
                time.sleep(2.2)
            begin = time.time()
            time.sleep(block - 2.4)
            spans.append((traced, begin, time.time()))
            if tracer:
                tracer.send_signal(2)
                tracer.wait()
        target.wait()
        reader.join()
        times = {True: [], False: []}
        for line in lines:
            if line.startswith("STEP"):
                begin, each = json.loads(line[5:])
                for traced, start, end in spans:
                    if start < begin < end:
                        times[traced].append(each)
        if times[True] and times[False]:
            off, on = (statistics.median(times[k]) for k in (False, True))
            row = f"{label}: {off * 1e6:.2f} us per step without, {on * 1e6:.2f} us with tracing, ratio {on / off:.3f}"
            print(row, flush=True)
            self.notes.append(row)

    def write(self):
        facts = {
            "date": datetime.date.today().isoformat(),
            "GPU, driver": machine.output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
            "kernel": machine.kernel(),
            "CPU cores": os.cpu_count(),
            "CUDA": machine.cuda_version("nvcc") or "",
            "PyTorch": machine.output(sys.executable, "-c", "import torch; print(torch.__version__)"),
            "vramscope": machine.output(self.vramscope, "--version"),
        }
        with open(os.path.join(self.out, "verification.md"), "w") as page:
            page.writelines(f"- {name}: {value}\n" for name, value in facts.items())
            page.write("\n| program | point | oracle | vramscope | difference | note |\n|---|---|---:|---:|---:|---|\n")
            page.writelines(f"| {program} | {point} | {oracle} | {ours} | {ours - oracle} | {explained} |\n"
                            for program, point, oracle, ours, explained in self.rows)
            page.write("\n")
            page.writelines(f"- {note}\n" for note in self.notes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--out", default="verification")
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    verification = Verification(os.path.abspath(options.vramscope), options.out)
    script = lambda name: [sys.executable, os.path.join(PROGRAMS, name)]
    parts = {
        "plain": verification.plain,
        "sanitizer": verification.sanitizer,
        "driver": verification.driver,
        "native": lambda: verification.python("torch_native"),
        "expandable": lambda: verification.python("torch_native", "torch_expandable",
                                           PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
        "async": lambda: verification.python("torch_async", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"),
        "graph": lambda: verification.python("torch_graph"),
        "threads": lambda: verification.python("torch_threads"),
        "oom": lambda: verification.python("torch_oom"),
        "cupy": lambda: verification.python("cupy_pool"),
        "jax": lambda: verification.python("jax_pool", XLA_PYTHON_CLIENT_PREALLOCATE="false"),
        "four": verification.four,
        "late": verification.late,
        "cost_malloc": lambda: verification.cost("cudaMalloc+cudaFree, 2 KiB", [verification.build("malloc_loop")]),
        "cost_torch": lambda: verification.cost("PyTorch training step", script("step_torch.py")),
        "cost_jax": lambda: verification.cost("JAX step", script("step_jax.py")),
        "cost_transformer": lambda: verification.cost("transformer training step", script("step_transformer.py")),
        "kernels_cost_torch": lambda: verification.cost(
            "PyTorch training step of small layers, `kernels`", script("step_torch.py"), "kernels"),
        "kernels_cost_transformer": lambda: verification.cost(
            "transformer training step, `kernels`", script("step_transformer.py"), "kernels"),
    }
    for name, part in parts.items():
        if options.only and name not in options.only:
            continue
        try:
            part()
        except Exception as error:  # noqa: BLE001 - a failing program must not hide the results of the others
            verification.notes.append(f"{name}: {type(error).__name__}: {error}")
            print(name, "FAILED", error, flush=True)
    verification.write()
    print("\n".join(verification.notes))


if __name__ == "__main__":
    main()
