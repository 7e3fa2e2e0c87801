"""One cell of the stress table: a rate and options of the tracer, compared with the oracle."""
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

from lib import bpf
from lib.processes import Lines, Usage, private_bytes, resident_bytes, start, stop, wait_attached

HERE = os.path.dirname(os.path.abspath(__file__))
RATES = ["1000", "4000", "20000", "max"]
SPAM_RESULT = re.compile(r"(\d+) events in ([\d.]+) s: \d+ events/s \((\d+) allocations, (\d+) frees\)")
# Seconds between two samples of the ring; the tracer reads it every 10 milliseconds.
RING_SAMPLE_INTERVAL = 0.002


class RingMaximum:
    """Samples the fill level of the ring buffer and keeps the maximum."""

    def __init__(self, pid):
        self.most, self.bytes, self.samples, self.ended = 0, 0, 0, False
        try:
            self.fill = bpf.RingFill(pid)
        except OSError as error:
            self.problem, self.fill = str(error), None
            return
        self.bytes = self.fill.bytes
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()

    def _sample(self):
        while not self.ended:
            self.most = max(self.most, self.fill.unread_bytes())
            self.samples += 1
            time.sleep(RING_SAMPLE_INTERVAL)

    def finish(self):
        if not self.fill:
            return {"problem": self.problem}
        self.ended = True
        self.thread.join()
        self.fill.close()
        return {"most_bytes": self.most, "of_bytes": self.bytes, "looks": self.samples}


def every_cell(seconds):
    return [{"rate": rate, "free_ratio": ratio, "printing": printing, "stacks": stacks, "seconds": seconds}
            for rate in RATES for ratio in (1.0, 0.0) for printing in (False, True) for stacks in ("off", "full")]


def spam(setup, cell, directory, seconds):
    """Starts the target, which waits for a line before its first call."""
    return start([setup.workload, "--wait-start", "spam", "--throughput", cell["rate"], "--free-ratio",
                  cell["free_ratio"], "--duration", seconds], env=setup.environment(SIM_ORACLE_DIR=directory),
                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(target, lines, seconds):
    """Releases the target and returns the results that it prints."""
    target.stdin.write("go\n")
    target.stdin.flush()
    line = lines.wait_for(SPAM_RESULT.search, seconds + 120, "the results of the target")
    events, span, allocations, frees = SPAM_RESULT.search(line).groups()
    return {"events": int(events), "seconds": float(span), "allocations": int(allocations), "frees": int(frees)}


def untraced_ns(setup, cell, seconds):
    """Returns nanoseconds per event without a tracer."""
    with tempfile.TemporaryDirectory() as directory:
        target = spam(setup, cell, directory, seconds)
        lines = Lines(target.stdout)
        lines.wait_for(lambda line: line.strip() == "ready", 60, "the target")
        done = go(target, lines, seconds)
        target.wait(300)
    return done["seconds"] / done["events"] * 1e9


def oracle_totals(directory, pid):
    """Returns the totals of the oracle. Only the head of its file is read: the list of live allocations can be long."""
    path = os.path.join(directory, f"{pid}.json")
    if not os.path.exists(path):
        return None
    with open(path) as file:
        text = file.read(4096)
    numbers = dict(re.findall(r'"(allocations|frees|live_bytes)": (\d+)', text))
    return {key: int(value) for key, value in numbers.items()}


def series(path, began):
    """Returns seconds, CPU in percent of a core, and memory in MB, from the file of monitor.py."""
    with open(path) as file:
        rows = [(float(row["timestamp"]) - began, float(row["cpu_percent"]), float(row["memory_mb"]))
                for row in csv.DictReader(file)]
    return [[round(value, 2) for value in row] for row in rows]


def last_report(path):
    """Returns the last report of a file."""
    size, text = os.path.getsize(path), b""
    with open(path, "rb") as file:
        while size > 0 and text.count(b"\n") < 2:
            step = min(size, 1 << 20)
            size -= step
            file.seek(size)
            text = file.read(step) + text
    return json.loads(text.strip().split(b"\n")[-1])


def add_verdict(cell, printed, oracle, report):
    """Adds received and expected events, and whether they are equal.

    Without an oracle (on a real driver) the target's own counts are expected.
    """
    process = next((p for p in report["processes"] if p["allocations_total"]), None)
    received = {"allocations": process["allocations_total"], "frees": process["frees_total"]} if process else {}
    expected = oracle or {"allocations": printed["allocations"], "frees": printed["frees"]}
    cell["received"] = sum(received.values())
    cell["truth"] = expected["allocations"] + expected["frees"]
    cell["lost"] = report["lost_events"]
    cell["exact"] = report["exact"]
    same = all(received.get(key) == expected[key] for key in ("allocations", "frees"))
    cell["right"] = same and cell["lost"] == 0


def measure(setup, cell, directory):
    """Runs a cell and adds the measured values to it."""
    seconds, reports = cell["seconds"], os.path.join(directory, "reports.jsonl")
    samples = os.path.join(directory, "samples.csv")
    if cell["rate"] == "max":
        cell["alone_ns"] = untraced_ns(setup, cell, min(seconds, 2.0))
    target = spam(setup, cell, directory, seconds)
    lines = Lines(target.stdout)
    lines.wait_for(lambda line: line.strip() == "ready", 60, "the target")
    tracer = start([setup.vramscope, "trace", "-v", "--json", "--stacks", cell["stacks"], "--interval",
                    "1s" if cell["printing"] else "10h", *setup.driver_option(), "-p", target.pid, "--force", "-o",
                    reports],
                   stderr=subprocess.PIPE, text=True)
    messages = Lines(tracer.stderr)
    wait_attached(messages)
    fill, before = RingMaximum(tracer.pid), resident_bytes(tracer.pid)
    description = "{rate}/s, {free_ratio} freed, printing {printing}, stacks {stacks}".format(**cell)
    monitor = start([sys.executable, os.path.join(HERE, "monitor.py"), "--description", description, "-o", samples,
                     tracer.pid])
    while not os.path.exists(samples) and monitor.poll() is None:
        time.sleep(0.02)
    began, usage = time.time(), Usage(tracer.pid)
    printed = go(target, lines, seconds)
    # The tracer reads the rest of the ring within 10 milliseconds.
    time.sleep(0.1)
    used, after, own = usage.so_far(), resident_bytes(tracer.pid), private_bytes(tracer.pid)
    cell["ring"] = fill.finish()
    stop(monitor)
    target.wait(300)
    if stop(tracer, timeout=120) != 0:
        raise RuntimeError(f"the tracer failed: {messages.text()}")
    add_verdict(cell, printed, oracle_totals(directory, target.pid), last_report(reports))
    events = printed["events"]
    cell.update(events=events, rate_reached=events / printed["seconds"], target_ns=printed["seconds"] / events * 1e9,
                cpu_percent=used["cpu_s"] / used["seconds"] * 100, user_us=used["user_s"] / events * 1e6,
                system_us=used["system_s"] / events * 1e6, memory_before_mb=before / 1e6, memory_mb=after / 1e6,
                own_memory_mb=own / 1e6, series=series(samples, began))
    if "alone_ns" in cell:
        cell["added_ns"] = cell["target_ns"] - cell["alone_ns"]
    return cell


def idle(setup, seconds):
    """Returns CPU time and memory of the tracer while no traced function is called."""
    with tempfile.TemporaryDirectory() as directory:
        tracer = start([setup.vramscope, "trace", "-v", "--json", "--interval", "10h", *setup.driver_option(), "-a", "-o",
                        os.path.join(directory, "reports.jsonl")], stderr=subprocess.PIPE, text=True)
        wait_attached(Lines(tracer.stderr))
        time.sleep(0.3)
        usage = Usage(tracer.pid)
        time.sleep(seconds)
        used, memory, own = usage.so_far(), resident_bytes(tracer.pid), private_bytes(tracer.pid)
        stop(tracer)
    return {"cpu_percent": used["cpu_s"] / used["seconds"] * 100, "memory_mb": memory / 1e6, "own_memory_mb": own / 1e6}
