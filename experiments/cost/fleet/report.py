#!/usr/bin/env python3
"""Writes the results of run.py into docs/operations/fleet.md.

usage: report.py [--check]
"""
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/operations/fleet.md"
RESULTS = ROOT / "experiments/results/bench/fleet.json"
STORES = {"prometheus": "Prometheus", "victoria-metrics": "VictoriaMetrics"}
DASHBOARDS = ("vramscope-fleet", "vramscope", "vramscope-process", "vramscope-site")


def number(value, digits=0):
    return "–" if value is None else f"{value:,.{digits}f}"


def size(value):
    return f"{value / 2**20:,.1f} MiB" if value >= 2**20 else f"{value / 1024:,.0f} KiB"


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows), ""]


def machine(facts):
    return (f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux {facts['kernel']}, {facts['date']}, "
            f"load {facts['load_at_start']} at the start")


def metrics(results):
    """Scraping, and the dashboards of each store."""
    stores = results["stores"]
    lines = ["**Metrics.** All hosts are scraped every 30 s, and rules are evaluated every 30 s.", ""]
    lines += table(["hosts", "store", "series", "samples/s", "memory", "CPU", "rules"],
                   [[number(one["hosts"]), STORES[one["store"]], number(one["series"]), number(one["samples_per_s"]), f"{one['peak_mib']:,.0f} MiB",
                     f"{one['cpu_percent']:.0f} %", f"{one['rules_ms']:.0f} ms" if "rules_ms" in one else "–"] for one in stores])
    lines += ["Time of all queries of a dashboard, one after the other, and of the slowest panel; graphs over the time of the measurement:", ""]
    rows = []
    for one in stores:
        row = [number(one["hosts"]), STORES[one["store"]]]
        for name in DASHBOARDS:
            times = [panel["ms"] for panel in one["panels"] if panel["dashboard"] == name]
            row.append(f"{sum(times):,.0f} ms ({max(times):,.0f} ms)")
        rows.append(row)
    return lines + table(["hosts", "store", *DASHBOARDS], rows)


def sizes(results):
    """Rows and bytes of a host and day."""
    tables = results["tables"]
    rows = [[f"`{name}`", number(one["files"]), size(one["bytes"])] for name, one in tables.items()]
    total = sum(one["bytes"] for one in tables.values())
    rows.append(["all", number(sum(one["files"] for one in tables.values())), size(total)])
    about = (f"One host and day has {results['rows_per_host']:,.0f} rows, with {results['running_per_host']:.1f} processes at a time "
             f"and {results['processes_per_host']:.0f} in all, one sample per minute:")
    return [f"**Tables.** {about}", "", *table(["table", "files", "bytes"], rows)]


def engines(sections):
    """Time and memory of all views, by engine, layout and hosts."""
    rows = []
    for section in sections:
        for one in section["engines"]:
            if one["wall_s"] is None:
                rows.append([number(one["hosts"]), "", one["engine"], "stopped", "", ""])
                continue
            slow = max(one["seconds"], key=one["seconds"].get)
            layout = "day" if one["file_hours"] == 24 else "hour"
            rows.append([number(one["hosts"]), layout, one["version"], f"{one['views_s']:,.1f} s", f"`{slow}` {one['seconds'][slow]:,.1f} s",
                         f"{one['peak_mib']:,.0f} MiB"])
    return table(["hosts", "file for each", "engine", "all nine views", "slowest", "memory"], rows)


def page():
    results = json.loads(RESULTS.read_text())
    sections = [results[name] for name in ("tables_24h", "tables_1h") if name in results]
    facts = (sections or [results["metrics"]])[0]["facts"]
    about = ("`./dev bench fleet` replays three recordings of real programs on an H200 as hosts: stretched to two hours, repeated with "
             f"other pids. {machine(facts)}. The machine was busy with other work: compare rows, and how they grow, not absolute times.")
    lines = [about, ""]
    if "metrics" in results:
        lines += metrics(results["metrics"])
    if sections:
        about = ("All views over one day of all hosts, engines limited to 3 GiB. The answers of the engines are equal, and sums over "
                 "the tables are those that the hosts reported:")
        lines += [*sizes(sections[0]), about, "", *engines(sections)]
    return "\n".join(lines)


def main():
    text = PAGE.read_text()
    new = re.sub(r"(<!-- fleet results -->\n).*?(<!-- end -->)", lambda found: found[1] + page() + found[2], text, flags=re.DOTALL)
    if "--check" in sys.argv:
        sys.exit(new != text)
    PAGE.write_text(new)
    os.utime(PAGE)


main()
