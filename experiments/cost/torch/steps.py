#!/usr/bin/env python3
"""Measures what tracing adds to a training step on a real GPU, next to PyTorch's own recorder.

usage: steps.py [--rounds N] [--window SECONDS] [-o RESULT.json] NAME=VRAMSCOPE…

Two programs train without end: 24 small layers, which keep Python busy, and 8 transformer layers. In every round each
way is attached to the running program for one window, one after the other: no tracer; each VRAMSCOPE with its default
and with --allocators=full; and PyTorch's recorder with Python stacks. Compared is the median step of each window with that of
the window without a tracer in the same round. Needs root, a GPU, and PyTorch for CUDA in the Python that runs this.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM = r'''
import signal, sys, time
import torch

kind, log = sys.argv[1], open(sys.argv[2], "w", buffering=1)
recording = False

def switch(*_):
    global recording
    recording = not recording
    torch.cuda.memory._record_memory_history("all" if recording else None, context="all", stacks="python",
                                             max_entries=1_000_000)

signal.signal(signal.SIGUSR1, switch)
torch.manual_seed(0)
if kind == "small":
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256)) for _ in range(24)]
    model, data = torch.nn.Sequential(*layers).cuda(), torch.randn(64, 256, device="cuda")
else:
    layer = torch.nn.TransformerEncoderLayer(d_model=1024, nhead=16, dim_feedforward=4096, batch_first=True)
    model, data = torch.nn.TransformerEncoder(layer, num_layers=8).cuda(), torch.randn(16, 128, 1024, device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
while True:
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    model(data).square().mean().backward()
    optimizer.step()
    torch.cuda.synchronize()
    log.write(f"{time.monotonic()} {time.perf_counter() - start} {torch.cuda.memory_stats()['allocation.all.allocated']}\n")
'''


class Program:
    """A program that trains without end and logs every step."""

    def __init__(self, kind, directory):
        self.log = os.path.join(directory, kind)
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, kind, self.log])

    def rows(self):
        with open(self.log, encoding="ascii") as file:
            return [tuple(map(float, line.split())) for line in file.read().rsplit("\n", 1)[0].splitlines()]

    def wait(self, steps):
        while not os.path.exists(self.log) or len(self.rows()) < steps:
            if self.process.poll() is not None:
                sys.exit(f"the program exited with {self.process.returncode}")
            time.sleep(0.1)

    def window(self, seconds):
        """Returns the median step in milliseconds, and tensors per step."""
        start = time.monotonic()
        time.sleep(seconds)
        rows = [row for row in self.rows() if row[0] >= start]
        return statistics.median(row[1] for row in rows) * 1e3, (rows[-1][2] - rows[0][2]) / (len(rows) - 1)


class Tracer:
    """A tracer that is attached to a program while the window is open."""

    def __init__(self, command):
        self.command = command

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        # After the second report its probes are attached, and the first stacks are known.
        for _ in range(4):
            self.process.stdout.readline()

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        out = self.process.communicate()[0]
        report = json.loads(out.splitlines()[-1])
        self.lost = report["lost_events"]


class Recorder:
    """PyTorch's own recorder."""

    def __init__(self, pid):
        self.pid, self.lost = pid, 0

    def __enter__(self):
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(0.5)

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--window", type=float, default=3)
    parser.add_argument("-o", "--output")
    parser.add_argument("binaries", nargs="+", metavar="NAME=VRAMSCOPE")
    options = parser.parse_args()
    results = {}
    for kind in ("small", "large"):
        with tempfile.TemporaryDirectory() as directory:
            program = Program(kind, directory)
            program.wait(200)
            pid = program.process.pid
            ways = {}
            for name, path in (one.split("=", 1) for one in options.binaries):
                trace = [path, "trace", "--json", "--interval", "300ms", "-p", str(pid)]
                ways[f"{name} default"] = Tracer(trace)
                # Of builds without sampling, the same as full.
                ways[f"{name} all"] = Tracer([*trace, "--allocators"])
                ways[f"{name} full"] = Tracer([*trace, "--allocators=full"])
            ways["recorder"] = Recorder(pid)
            found = {}
            for _ in range(options.rounds):
                plain, tensors = program.window(options.window)
                found.setdefault("none", []).append(plain)
                for way, context in ways.items():
                    with context:
                        step = program.window(options.window)[0]
                    found.setdefault(way, []).append(step / plain)
                    if context.lost:
                        print(f"{kind} {way}: {context.lost} events lost")
            program.process.kill()
            program.process.wait()
        print(f"{kind}: {statistics.median(found['none']):.2f} ms per step, {tensors:.0f} tensors", flush=True)
        for way, ratios in found.items():
            if way != "none":
                print(f"  {way:20} x{statistics.median(ratios):.3f}  ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)
        results[kind] = found
    if options.output:
        with open(options.output, "w", encoding="ascii") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
