"""One cell of the stress table: a rate, traced in one way, against the truth."""
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

from bench import bpf
from bench.processes import Lines, Usage, anonymous, resident, start, stop

HERE = os.path.dirname(os.path.abspath(__file__))
RATES = ["1000", "4000", "20000", "max"]
TOLD = re.compile(r"(\d+) events in ([\d.]+) s: \d+ events/s \((\d+) allocations, (\d+) frees\)")
# Time between two looks at the ring; its reader comes by every 10 milliseconds.
LOOK = 0.002


class FillWatch:
    """The fullest that the ring was, of all times that somebody looked."""

    def __init__(self, pid):
        self.most, self.bytes, self.looks, self.ended = 0, 0, 0, False
        try:
            self.fill = bpf.RingFill(pid)
        except OSError as error:
            self.problem, self.fill = str(error), None
            return
        self.bytes = self.fill.bytes
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self):
        while not self.ended:
            self.most = max(self.most, self.fill.now())
            self.looks += 1
            time.sleep(LOOK)

    def finish(self):
        if not self.fill:
            return {"problem": self.problem}
        self.ended = True
        self.thread.join()
        self.fill.close()
        return {"most_bytes": self.most, "of_bytes": self.bytes, "looks": self.looks}


def every_cell(seconds):
    return [{"rate": rate, "free_ratio": ratio, "printing": printing, "stacks": stacks, "seconds": seconds}
            for rate in RATES for ratio in (1.0, 0.0) for printing in (False, True) for stacks in ("off", "full")]


def spam(place, cell, folder, seconds):
    """The target, which waits for a line before it begins."""
    return start([place.workload, "--wait-start", "spam", "--throughput", cell["rate"], "--free-ratio",
                  cell["free_ratio"], "--duration", seconds], env=place.environment(SIM_ORACLE_DIR=folder),
                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(player, lines, seconds):
    """Lets the target begin; what it says that it did."""
    player.stdin.write("go\n")
    player.stdin.flush()
    line = lines.wait_for(TOLD.search, seconds + 120, "the target's own figures")
    events, span, allocations, frees = TOLD.search(line).groups()
    return {"events": int(events), "seconds": float(span), "allocations": int(allocations), "frees": int(frees)}


def alone(place, cell, seconds):
    """Nanoseconds per event without anybody watching."""
    with tempfile.TemporaryDirectory() as folder:
        player = spam(place, cell, folder, seconds)
        lines = Lines(player.stdout)
        lines.wait_for(lambda line: line.strip() == "ready", 60, "the target")
        done = go(player, lines, seconds)
        player.wait(300)
    return done["seconds"] / done["events"] * 1e9


def oracle(folder, pid):
    """What the simulated driver wrote down; its list of what is live can be long, and is not needed."""
    path = os.path.join(folder, f"{pid}.json")
    if not os.path.exists(path):
        return None
    with open(path) as file:
        text = file.read(4096)
    numbers = dict(re.findall(r'"(allocations|frees|live_bytes)": (\d+)', text))
    return {key: int(value) for key, value in numbers.items()}


def series(path, began):
    """Seconds, CPU in percent of a core, and memory in MB, out of the monitor's file."""
    with open(path) as file:
        rows = [(float(row["timestamp"]) - began, float(row["cpu_percent"]), float(row["memory_mb"]))
                for row in csv.DictReader(file)]
    return [[round(value, 2) for value in row] for row in rows]


def last_report(path):
    """The last line of a file of reports."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        size, text = file.tell(), b""
        while size > 0 and text.count(b"\n") < 2:
            step = min(size, 1 << 20)
            size -= step
            file.seek(size)
            text = file.read(step) + text
    return json.loads(text.strip().split(b"\n")[-1])


def verdict(cell, told, truth, report):
    """What was received, what was the case, and whether the two are one."""
    process = next((p for p in report["processes"] if p["allocations_total"]), None)
    seen = {"allocations": process["allocations_total"], "frees": process["frees_total"]} if process else {}
    truth = truth or {"allocations": told["allocations"], "frees": told["frees"]}
    cell["received"] = sum(seen.values())
    cell["truth"] = truth["allocations"] + truth["frees"]
    cell["lost"] = report["lost_events"]
    cell["exact"] = report["exact"]
    same = all(seen.get(key) == truth[key] for key in ("allocations", "frees"))
    cell["right"] = same and cell["lost"] == 0


def measure(place, cell, folder):
    """Runs a cell; its figures are added to it."""
    seconds, reports = cell["seconds"], os.path.join(folder, "reports.jsonl")
    samples = os.path.join(folder, "samples.csv")
    if cell["rate"] == "max":
        cell["alone_ns"] = alone(place, cell, min(seconds, 2.0))
    player = spam(place, cell, folder, seconds)
    lines = Lines(player.stdout)
    lines.wait_for(lambda line: line.strip() == "ready", 60, "the target")
    tracer = start([place.vramscope, "trace", "--json", "--stacks", cell["stacks"], "--interval",
                    "1s" if cell["printing"] else "10h", *place.driver_option(), "-p", player.pid, "--force", "-o",
                    reports],
                   stderr=subprocess.PIPE, text=True)
    messages = Lines(tracer.stderr)
    messages.wait_for(lambda line: "attached to" in line, 60, "the tracer's probes")
    fill, before = FillWatch(tracer.pid), resident(tracer.pid)
    description = "{rate}/s, {free_ratio} freed, printing {printing}, stacks {stacks}".format(**cell)
    monitor = start([sys.executable, os.path.join(HERE, "monitor.py"), "--description", description, "-o", samples,
                     tracer.pid])
    while not os.path.exists(samples) and monitor.poll() is None:
        time.sleep(0.02)
    began, usage = time.time(), Usage(tracer.pid)
    told = go(player, lines, seconds)
    # What is still in the ring is read within 10 milliseconds.
    time.sleep(0.1)
    used, after, own = usage.so_far(), resident(tracer.pid), anonymous(tracer.pid)
    cell["ring"] = fill.finish()
    stop(monitor)
    player.wait(300)
    if stop(tracer, patience=120) != 0:
        raise RuntimeError(f"the tracer failed: {messages.text()}")
    verdict(cell, told, oracle(folder, player.pid), last_report(reports))
    events = told["events"]
    cell.update(events=events, rate_reached=events / told["seconds"], target_ns=told["seconds"] / events * 1e9,
                cpu_percent=used["cpu_s"] / used["seconds"] * 100, user_us=used["user_s"] / events * 1e6,
                system_us=used["system_s"] / events * 1e6, memory_before_mb=before / 1e6, memory_mb=after / 1e6,
                own_memory_mb=own / 1e6, series=series(samples, began))
    if "alone_ns" in cell:
        cell["added_ns"] = cell["target_ns"] - cell["alone_ns"]
    return cell


def idle(place, seconds):
    """What the tracer takes while nothing happens."""
    with tempfile.TemporaryDirectory() as folder:
        tracer = start([place.vramscope, "trace", "--json", "--interval", "10h", *place.driver_option(), "-a", "-o",
                        os.path.join(folder, "reports.jsonl")], stderr=subprocess.PIPE, text=True)
        Lines(tracer.stderr).wait_for(lambda line: "attached to" in line, 60, "the tracer's probes")
        time.sleep(0.3)
        usage = Usage(tracer.pid)
        time.sleep(seconds)
        used, memory, own = usage.so_far(), resident(tracer.pid), anonymous(tracer.pid)
        stop(tracer)
    return {"cpu_percent": used["cpu_s"] / used["seconds"] * 100, "memory_mb": memory / 1e6, "own_memory_mb": own / 1e6}
