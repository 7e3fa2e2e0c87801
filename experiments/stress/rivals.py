"""Cost of tracing an allocation and its free for the program: floors, other tools and vramscope, alternating."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

from bench import bpf
from bench.place import probe_offsets
from bench.processes import Lines, Usage, start, stop

FUNCTIONS = ["cuMemAlloc_v2", "cuMemFree_v2"]
DEPTH = 5

# Keeps in the kernel what is live, as far as the language goes: it cannot tell a process that ended.
BPFTRACE = """
uprobe:LIB:cuMemAlloc_v2 { @out[tid] = arg0; @asked[tid] = arg1; }
uretprobe:LIB:cuMemAlloc_v2 /@out[tid]/ {
    if (retval == 0) { @live[pid, *(uint64 *)uptr(@out[tid])] = @asked[tid]; @allocations = count(); }
    delete(@out[tid]); delete(@asked[tid]);
}
uprobe:LIB:cuMemFree_v2 { @freeing[tid] = arg0; }
uretprobe:LIB:cuMemFree_v2 /@freeing[tid]/ {
    if (retval == 0) { delete(@live[pid, @freeing[tid]]); @frees = count(); }
    delete(@freeing[tid]);
}
BEGIN { printf("ready\\n"); }
END { clear(@live); clear(@out); clear(@asked); clear(@freeing); }
"""

WORDS = {
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


class Rival:
    """Somebody who watches, or a reason why not."""

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


def rivals(place, folder):
    """Everybody, by name; the order is that of the turns."""
    everybody = {"none": Rival()}
    floor, program = place.tool("floor"), place.tool("floor.bpf.o")
    offsets = [hex(offset) for offset in probe_offsets(place.driver_file, FUNCTIONS)]
    for way in ("empty", "record", "paired", "naive"):
        missing = None if floor and program else "needs clang, gcc and the build's libbpf"
        everybody[way] = Rival([floor, way, program, place.driver_file, *offsets, "1000"], "ready", missing)
    missing = None if shutil.which("bpftrace") else "bpftrace is not installed"
    everybody["bpftrace"] = Rival(["bpftrace", "-e", BPFTRACE.replace("LIB", place.driver_file)], "ready", missing,
                                  {**os.environ, "BPFTRACE_MAP_KEYS_MAX": "65536"})
    for way, extra in {"empty": ["--stacks", "off", "--empty-probes"], "off": ["--stacks", "off"],
                       "fp": ["--stacks", "fp"], "full": ["--stacks", "full"]}.items():
        command = [place.vramscope, "trace", "--json", "--interval", "1s", *place.driver_option(), "-a", *extra,
                   "--force", "-o", os.path.join(folder, "reports.jsonl")]
        everybody[f"vramscope {way}"] = Rival(command, "attached to")
    return everybody


def pairs(place, count):
    """Nanoseconds per pair, on the last of the CPUs that there are."""
    cpu = max(os.sched_getaffinity(0))
    player = start([place.tool("pairs"), DEPTH, count], env=place.environment(), stdout=subprocess.PIPE, text=True,
                   preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    out, _ = player.communicate(timeout=300)
    told = re.search(r"([\d.]+) ns per pair", out)
    if player.returncode != 0 or not told:
        raise RuntimeError(f"pairs: exit {player.returncode}: {out}")
    return float(told.group(1))


def turn(place, rival, count):
    """One turn of somebody: what a pair took, and what the watcher took for an event."""
    if not rival.command:
        return pairs(place, count), 0.0, {}
    rival.begin()
    usage, inside = Usage(rival.process.pid), bpf.time_in_programs(rival.process.pid)
    took = pairs(place, count)
    # Nothing, unless the kernel accounts it.
    rival.inside = (bpf.time_in_programs(rival.process.pid) - inside) / (count * 1.1)
    time.sleep(0.03)
    used = usage.so_far()
    # The program warms up with a tenth more.
    return took, used["cpu_s"] / (count * 2.2) * 1e6, rival.end()


def compare(place, folder, rounds, count, say):
    """Everybody by turns; per rival the least time of a pair, what that adds, and the ratio to the floor."""
    everybody = rivals(place, folder)
    there = {name: rival for name, rival in everybody.items() if not rival.missing}
    times, costs, told = ({name: [] for name in there} for _ in range(3))
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for name, rival in there.items():
            took, cost, ended = turn(place, rival, count)
            times[name].append(took)
            costs[name].append(cost)
            told[name] = ended
    inside = {}
    with bpf.accounting():
        for _ in range(min(rounds, 3)):
            for name, rival in there.items():
                if rival.command:
                    turn(place, rival, count)
                    inside[name] = min(rival.inside, inside.get(name, rival.inside))
    best = {name: min(values) for name, values in times.items()}
    floor = best["record"] - best["none"] if "record" in best else None
    rows = []
    for name, rival in everybody.items():
        if rival.missing:
            rows.append({"way": name, "missing": rival.missing})
            continue
        added = best[name] - best["none"]
        rows.append({"way": name, "pair_ns": best[name], "added_ns": added, "all_ns": times[name],
                     "to_floor": added / floor if floor and name != "none" else None,
                     "in_programs_ns": inside.get(name), "watcher_us": min(costs[name]), "reported": told[name]})
    return {"rounds": rounds, "pairs": count, "depth": DEPTH, "rows": rows}
