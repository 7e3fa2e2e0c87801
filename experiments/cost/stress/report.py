#!/usr/bin/env python3
"""Writes the measurements of docs/internals/performance.md and its charts from the results.

usage: report.py [--check] [RESULTS.json …]

Without arguments it reads experiments/results/bench/*.json. It replaces the part between the two marks of the page;
the rest is written by hand. With --check it writes nothing and exits with 1 if the page or a chart would change.
"""
import argparse
import glob
import json
import os
import pathlib
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(os.path.dirname(HERE)))

import other_tools
from lib import chart
from lib.paths import ROOT

PAGE = os.path.join(ROOT, "docs/internals/performance.md")
BEGIN, END = "<!-- begin generated: experiments/cost/stress/report.py -->", "<!-- end generated -->"


class Machine:
    """The section of one machine: its text, and charts by file name."""

    def __init__(self, results):
        self.results, self.name, self.parts, self.charts = results, results["machine"], [], {}
        self.slug = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        self.add(f"## On the {self.name}")
        self.add(self.facts())
        for part in (self.stress, self.other_tools, self.growth, self.load, self.soak):
            if part.__name__ in results:
                part(results[part.__name__])

    def add(self, text):
        self.parts.append(text)

    def table(self, heads, rows):
        """Adds a table; `heads` start with < or > for the alignment of the column."""
        lines = ["| " + " | ".join(head[1:] for head in heads) + " |",
                 "|" + "|".join("---:" if head[0] == ">" else "---" for head in heads) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        self.add("\n".join(lines))

    def chart(self, suffix, title, *arguments, **options):
        name = f"performance-{self.slug}-{suffix}.svg"
        self.charts[name] = chart.lines(title, *arguments, **options)
        self.add(f"![{title}](../images/{name})")

    def facts(self):
        one = next(value["facts"] for key, value in self.results.items() if key != "machine")
        where = ", in a virtual machine" if one["virtual"] else ""
        gpu = f"{one['gpu']}, " if one["gpu"] else ""
        loads = [f"{key.replace('_', ' ')} {value['facts']['load_at_start']}" for key, value in self.results.items() if key != "machine"]
        return (f"{gpu}{one['cores']} cores of {one['processor']}{where}, Linux {one['kernel']}, {one['memory_gib']} GiB; "
                f"the {one['driver']} driver; {one['version']}, {one['date']}. Load of the machine before each measurement: "
                f"{', '.join(loads)}.")

    # -- the five measurements --

    def stress(self, done):
        self.add("### Stress")
        idle = done["idle"]
        self.add(f"{len(done['cells'])} cells of {done['seconds']:g} seconds. An idle tracer uses "
                 f"{idle['cpu_percent']:.2f} % of a core and {idle['memory_mb']:.0f} MB, {idle['own_memory_mb']:.0f} MB of it "
                 "private: the kernel maps each ring of 16 MiB twice, and both count.")
        rows = []
        for cell in done["cells"]:
            ring = cell["ring"]
            fill = f"{ring['most_bytes'] / ring['of_bytes'] * 100:.2f} %" if ring.get("of_bytes") else "unknown"
            rows.append([
                "full speed" if cell["rate"] == "max" else f"{int(cell['rate']):,}",
                f"{cell['free_ratio'] * 100:.0f} %", "every second" if cell["printing"] else "none", cell["stacks"],
                f"{cell['rate_reached']:,.0f}", f"{cell['cpu_percent']:.1f} %", f"{cell['user_us']:.2f}",
                f"{cell['system_us']:.2f}", f"{cell['memory_mb']:.0f}", f"{cell['own_memory_mb']:.0f}", fill,
                f"{cell['added_ns'] / 1000:.1f}" if "added_ns" in cell else "",
                f"{cell['lost']}", "all" if cell["right"] else f"**{cell['received']} of {cell['truth']}**"])
        self.table(["<target events/s", ">freed", "<reports", "<stacks", ">events/s", ">CPU (one core)", ">user µs/event",
                    ">system µs/event", ">MB", ">private MB", ">ring maximum", ">added µs/call", ">lost", "<received"], rows)
        lines = {self.rate(cell): cell["series"] for cell in done["cells"]
                 if not cell["free_ratio"] and cell["printing"] and cell["stacks"] == "full"}
        if lines:
            about = f"tracer on the {self.name}: nothing freed, reports, stacks"
            self.chart("cpu", f"CPU of the {about}", ("seconds", "percent of a core"),
                         {name: [(s[0], s[1]) for s in series] for name, series in lines.items()})
            self.chart("memory", f"Memory of the {about}", ("seconds", "MB"),
                         {name: [(s[0], s[2]) for s in series] for name, series in lines.items()})

    @staticmethod
    def rate(cell):
        return "full speed" if cell["rate"] == "max" else f"{int(cell['rate']):,} events/s"

    def other_tools(self, done):
        self.add("### Floors and other tools")
        self.add(f"{done['pairs']:,} pairs of allocation and free, {done['rounds']} alternating rounds; the minimum of each, because "
                 "other work only adds time. *In BPF programs* is the time that the kernel accounts to them, measured in a separate "
                 "round (about 65 ns per run are the accounting itself); the rest is entering and leaving the probe. The tracer's CPU "
                 "is that of its own process.")
        rows = []
        for row in done["rows"]:
            words = other_tools.LABELS[row["way"]]
            if "missing" in row:
                rows.append([words, "not measured: " + row["missing"], "", "", "", ""])
                continue
            ratio = f"x {row['to_floor']:.2f}" if row["to_floor"] is not None else ""
            none = row["way"] == "none"
            rows.append([words, f"{row['pair_ns']:,.0f} ns", "" if none else f"{row['added_ns']:,.0f} ns", ratio,
                         "" if none else f"{row['in_programs_ns']:,.0f} ns", "" if none else f"{row['watcher_us']:.2f} µs"])
        self.table(["<probes", ">time per pair", ">added", ">vs. floor", ">in BPF programs", ">tracer CPU per call"],
                   rows)

    def growth(self, done):
        self.add("### Growth")
        self.add("By number of live allocations. *Same* and *distinct* refer to their sizes. The plain ledger is a hash table "
                 "that is scanned at every report, without stacks, threads or size order.")
        names = {"vramscope": "vramscope", "naive": "plain ledger"}
        rows = [[names[row["who"]], f"{row['live']:,}", row["sizes"], f"{row['event_us']:.2f} µs",
                 f"{row['report_us']:,.0f} µs" if row["report_us"] is not None else "", f"{row['bytes']:.0f}",
                 f"{row['memory_mb']:.0f}"] for row in done["rows"]]
        self.table(["<tool", ">live", "<sizes", ">CPU per event", ">CPU per report", ">bytes per live allocation", ">total MB"], rows)
        for what, key, title, unit, log in [("event", "event_us", "CPU per event", "microseconds", False),
                                            ("report", "report_us", "CPU per report", "microseconds", True),
                                            ("bytes", "bytes", "Memory per live allocation", "bytes", False)]:
            series = {}
            for row in done["rows"]:
                # Below ten thousand, pages are all that is seen.
                if row[key] is not None and (what != "bytes" or row["live"] >= 10_000):
                    name = f"{names[row['who']]}, {row['sizes']} sizes"
                    series.setdefault(name, []).append((row["live"], max(row[key], 0.1)))
            if series:
                self.chart(f"growth-{what}", f"{title}, by live allocations, on the {self.name}", ("live allocations", unit), series,
                             log_x=True, log_y=log, dots=True)

    def load(self, done):
        self.add("### Request load")
        self.add(f"{done['connections']} connections that send requests continuously and {done['slow_clients']} clients that never "
                 f"finish, while a program makes {done['target_rate']:,} events/s: {done['requests_per_s']:,.0f} responses/s "
                 f"(half metrics, half snapshots), median {done['median_ms']:.1f} ms, p99 {done['p99_ms']:.1f} ms; "
                 f"{done['received']:,} events received, {done['lost']} lost. The agent used {done['agent_cpu_percent']:.1f} % of a core, "
                 f"{done['answering_percent']:.1f} % for responses.")
        self.add("Time of a pair of allocation and free in another traced program meanwhile, "
                 f"{done['pairs']:,} pairs, {done['rounds']} alternating rounds:")
        rows = [[row["load_on"], f"{row['median_ns']:,.0f} ns", f"x {row['median_ratio']:.2f}", f"{row['least_ns']:,.0f} ns",
                 f"x {row['least_ratio']:.2f}", f"{row['processor_ns']:,.0f} ns", f"x {row['processor_ratio']:.2f}"]
                for row in done["cost"]]
        self.table(["<request load on", ">median", ">ratio", ">minimum", ">ratio", ">on a processor", ">ratio"], rows)

    def soak(self, done):
        self.add("### Soak")
        long = done["long"]
        problems = "; ".join(done["problems"]) or "no problems"
        self.add(f"{done['seconds'] / 60:.1f} minutes: {done['programs']} programs, {done['killed']} of them killed; "
                 f"{done['compared']} processes equal to the oracle; {done['restarts']} restarts of the tracer, "
                 f"{done['sigkills']} of them by SIGKILL; {done['lost']} events lost; {problems}. The tracer used "
                 f"{long['cpu_percent']:.1f} % of a core and {long['memory_mb']:.1f} MB of private memory, {long['grown_mb']:+.2f} MB over the "
                 f"last {long['span_s']:.0f} seconds of its longest run, in which {long['ended']} processes exited.")
        self.chart("soak", f"Private memory of the tracer during the soak, {self.name}", ("seconds", "MB"),
                     {"private memory": [row[:2] for row in long["series"]]})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("results", nargs="*")
    options = parser.parse_args()
    paths = options.results or sorted(glob.glob(os.path.join(ROOT, "experiments/results/bench/*.json")))
    machines = []
    for path in paths:
        with open(path) as file:
            machines.append(Machine(json.load(file)))
    with open(PAGE) as file:
        page = file.read()
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        sys.exit(f"{PAGE} has no generated part: it needs one line {BEGIN} and one line {END}")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    text = "\n\n".join(part for machine in machines for part in machine.parts)
    text = f"{BEGIN}\n\n{text}\n\n{END}" if text else f"{BEGIN}\n\n{END}"
    files = {PAGE: f"{before}{text}{after}"}
    for machine in machines:
        files.update({os.path.join(ROOT, "docs/images", name): svg for name, svg in machine.charts.items()})
    changed = []
    for path, content in files.items():
        if not os.path.exists(path) or pathlib.Path(path).read_text() != content:
            changed.append(os.path.relpath(path, ROOT))
            if not options.check:
                with open(path, "w") as file:
                    file.write(content)
    if options.check and changed:
        sys.exit(f"differs from the results: {', '.join(changed)}; run experiments/cost/stress/report.py")
    print(f"{len(changed)} files {'would change' if options.check else 'written'}")


if __name__ == "__main__":
    main()
