"""Cost of tracing an allocation and its free for the program: floors, other tools and vramscope, alternating."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

from lib import bpf
from lib.paths import probe_offsets
from lib.processes import Lines, Usage, start, stop

FUNCTIONS = ["cuMemAlloc_v2", "cuMemFree_v2"]
DEPTH = 5

# Tracks live allocations in the kernel, as far as the language allows: it cannot detect the exit of a process.
BPFTRACE = """
uprobe:LIB:cuMemAlloc_v2 { @out[tid] = arg0; @size[tid] = arg1; }
uretprobe:LIB:cuMemAlloc_v2 /@out[tid]/ {
    if (retval == 0) { @live[pid, *(uint64 *)uptr(@out[tid])] = @size[tid]; @allocations = count(); }
    delete(@out[tid]); delete(@size[tid]);
}
uprobe:LIB:cuMemFree_v2 { @freeing[tid] = arg0; }
uretprobe:LIB:cuMemFree_v2 /@freeing[tid]/ {
    if (retval == 0) { delete(@live[pid, @freeing[tid]]); @frees = count(); }
    delete(@freeing[tid]);
}
BEGIN { printf("ready\\n"); }
END { clear(@live); clear(@out); clear(@size); clear(@freeing); }
"""

LABELS = {
    "none": "no probes",
    "empty": "empty session probes",
    "record": "session probes that send 64 bytes per call (floor)",
    "paired": "the same, with entry arguments and time",
    "naive": "the same, into a hash table that is scanned at every report",
    "bpftrace": "bpftrace, pairing in the kernel",
    "vramscope empty": "vramscope with empty probes",
    "vramscope off": "vramscope, `--stacks off`",
    "vramscope fp": "vramscope, `--stacks fp`",
    "vramscope full": "vramscope, `--stacks full`",
}


class Tool:
    """A tool to compare with, or the reason why it cannot run."""

    def __init__(self, command=None, ready=None, missing=None, environment=None):
        self.command, self.ready, self.missing, self.environment = command, ready, missing, environment

    def begin(self):
        self.process = start(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env=self.environment)
        self.lines = Lines(self.process.stdout)
        self.lines.wait_for(lambda line: self.ready in line, 60, self.command[0])

    def end(self):
        stop(self.process, signal.SIGINT, 120)
        self.lines.finish()
        for line in reversed(self.lines.lines):
            if line.startswith('{"received"'):
                return json.loads(line)
        counts = dict(re.findall(r"@(allocations|frees): (\d+)", self.lines.text()))
        return {key: int(value) for key, value in counts.items()}


def all_tools(setup, directory):
    """Returns the tools by name, in the order in which they run."""
    tools = {"none": Tool()}
    floor, program = setup.tool("floor"), setup.tool("floor.bpf.o")
    offsets = [hex(offset) for offset in probe_offsets(setup.driver_file, FUNCTIONS)]
    for mode in ("empty", "record", "paired", "naive"):
        missing = None if floor and program else "needs clang, gcc and the build's libbpf"
        tools[mode] = Tool([floor, mode, program, setup.driver_file, *offsets, "1000"], "ready", missing)
    missing = None if shutil.which("bpftrace") else "bpftrace is not installed"
    tools["bpftrace"] = Tool(["bpftrace", "-e", BPFTRACE.replace("LIB", setup.driver_file)], "ready", missing,
                             {**os.environ, "BPFTRACE_MAP_KEYS_MAX": "65536"})
    for mode, extra in {"empty": ["--stacks", "off", "--empty-probes"], "off": ["--stacks", "off"],
                       "fp": ["--stacks", "fp"], "full": ["--stacks", "full"]}.items():
        command = [setup.vramscope, "trace", "-v", "--json", "--interval", "1s", *setup.driver_option(), "-a", *extra,
                   "--force", "-o", os.path.join(directory, "reports.jsonl")]
        tools[f"vramscope {mode}"] = Tool(command, "attached to")
    return tools


def pairs(setup, count):
    """Returns nanoseconds per pair, on the last CPU."""
    cpu = max(os.sched_getaffinity(0))
    process = start([setup.tool("pairs"), DEPTH, count], env=setup.environment(), stdout=subprocess.PIPE, text=True,
                   preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    out, _ = process.communicate(timeout=300)
    found = re.search(r"([\d.]+) ns per pair", out)
    if process.returncode != 0 or not found:
        raise RuntimeError(f"pairs: exit {process.returncode}: {out}")
    return float(found.group(1))


def measure(setup, tool, count):
    """Runs one round of a tool. Returns the time of a pair, the tool's CPU time per call, and its results."""
    if not tool.command:
        return pairs(setup, count), 0.0, {}
    tool.begin()
    usage, inside = Usage(tool.process.pid), bpf.program_nanos(tool.process.pid)
    took = pairs(setup, count)
    # Zero outside of bpf.statistics().
    tool.inside = (bpf.program_nanos(tool.process.pid) - inside) / (count * 1.1)
    time.sleep(0.03)
    used = usage.so_far()
    # The program makes a tenth more pairs to warm up.
    return took, used["cpu_s"] / (count * 2.2) * 1e6, tool.end()


def compare(setup, directory, rounds, count, say):
    """Runs the tools alternating. Returns for each the minimum time of a pair, the added time, and the ratio to the floor."""
    tools = all_tools(setup, directory)
    available = {name: tool for name, tool in tools.items() if not tool.missing}
    times, costs, reported = ({name: [] for name in available} for _ in range(3))
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for name, tool in available.items():
            took, cost, totals = measure(setup, tool, count)
            times[name].append(took)
            costs[name].append(cost)
            reported[name] = totals
    inside = {}
    with bpf.statistics():
        for _ in range(min(rounds, 3)):
            for name, tool in available.items():
                if tool.command:
                    measure(setup, tool, count)
                    inside[name] = min(tool.inside, inside.get(name, tool.inside))
    best = {name: min(values) for name, values in times.items()}
    floor = best["record"] - best["none"] if "record" in best else None
    rows = []
    for name, tool in tools.items():
        if tool.missing:
            rows.append({"way": name, "missing": tool.missing})
            continue
        added = best[name] - best["none"]
        rows.append({"way": name, "pair_ns": best[name], "added_ns": added, "all_ns": times[name],
                     "to_floor": added / floor if floor and name != "none" else None,
                     "in_programs_ns": inside.get(name), "watcher_us": min(costs[name]), "reported": reported[name]})
    return {"rounds": rounds, "pairs": count, "depth": DEPTH, "rows": rows}
