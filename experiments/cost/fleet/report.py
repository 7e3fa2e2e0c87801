#!/usr/bin/env python3
"""Writes the results of run.py into docs/operations/fleet.md.

usage: report.py [--check]
"""
import itertools
import json
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/operations/fleet.md"
RESULTS = ROOT / "experiments/results/fleet/results.json"
ENGINES = {"duckdb": "DuckDB", "clickhouse": "ClickHouse", "spark": "Spark"}
STORES = {"prometheus": "Prometheus", "victoria-metrics": "VictoriaMetrics"}
GROUPS = ("vramscope", "vramscope-processes", "vramscope-fleet")
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
    about = ("**Metrics.** All hosts are scraped every 30 s, and rules are evaluated every 30 s, those of processes every minute. CPU is that of "
             "all of this, as a share of one core. Active alerts, and the elapsed time of the last evaluation of each group of rules:")
    lines = [about, ""]
    lines += table(["hosts", "store", "series", "samples/s", "memory", "CPU", "alerts", *(f"`{group}`" for group in GROUPS)],
                   [[number(one["hosts"]), STORES[one["store"]], number(one["series"]), number(one["samples_per_s"]), f"{one['peak_mib']:,.0f} MiB",
                     f"{one['cpu_percent']:.1f} %", number(one.get("alerts")), *(rules(one, group) for group in GROUPS)] for one in stores])
    lines += ["Time of all queries of a dashboard, one after the other, and of the slowest panel; graphs over the time of the measurement:", ""]
    rows = []
    for one in stores:
        row = [number(one["hosts"]), STORES[one["store"]]]
        for name in DASHBOARDS:
            times = [panel["ms"] for panel in one["panels"] if panel["dashboard"] == name]
            row.append(f"{sum(times):,.0f} ms ({max(times):,.0f} ms)")
        rows.append(row)
    lines += table(["hosts", "store", *DASHBOARDS], rows)
    most = {one["store"]: one for one in stores if one["hosts"] == stores[-1]["hosts"]}
    times = [{(panel["dashboard"], panel["panel"]): panel for panel in most[store]["panels"]} for store in STORES]
    about = (f"Panels with {stores[-1]['hosts']:,} hosts: elapsed time (CPU time of the server, with scrapes and rules at the same time), and for "
              "the dashboard of a host the five slowest:")
    slowest = sorted((key for key in times[0] if key[0] == "vramscope"), key=lambda key: -max(one[key]["ms"] for one in times))[:5]
    shown = [key for key in times[0] if key[0] != "vramscope" or key in slowest]
    return [*lines, about, "", *table(["dashboard", "panel", *STORES.values()],
                         [[f"`{key[0]}`", key[1], *(f"{one[key]['ms']:,.0f} ms ({one[key]['cpu_ms']:,.0f} ms)" for one in times)] for key in shown])]


def rules(store, group):
    """Returns the time of the last evaluation of a group of rules."""
    return f"{store['rules_ms'][group]:,.0f} ms" if "rules_ms" in store else "–"


def sizes(sections):
    """Rows and bytes of a host and day, in each layout."""
    first = sections[0]
    layouts = ["day" if one["engines"][0]["file_hours"] == 24 else "hour" for one in sections]
    rows = [[f"`{name}`", number(first["tables"][name]["rows"]), *(size(one["tables"][name]["bytes"]) for one in sections)] for name in first["tables"]]
    rows.append(["all but `metrics`", number(sum(one["rows"] for name, one in first["tables"].items() if name != "metrics")), *(size(table_bytes(one)) for one in sections)])
    about = (f"**Tables.** One host and day has {first['rows_per_host']:,.0f} rows, most of them in `metrics`, with "
             f"{first['running_per_host']:.1f} processes at a time and {first['processes_per_host']:.0f} in all, one sample per minute:")
    return [about, "", *table(["per host and day", "rows", *(f"a file for each {layout}" for layout in layouts)], rows)]


def table_bytes(section):
    """Returns the bytes per host and day of the tables that views read."""
    return sum(one["bytes"] for name, one in section["tables"].items() if name != "metrics")


def on_paper(metrics, section):
    """Continues the growth between the two largest numbers of hosts."""
    def line(store, key, hosts):
        (few, low), (many, high) = [(one["hosts"], one[key]) for one in metrics["stores"] if one["store"] == store][-2:]
        return low + (high - low) / (many - few) * (hosts - few)

    rows = []
    for hosts in (1000, 10_000, 100_000):
        rows.append([number(hosts), number(line("prometheus", "series", hosts)), number(line("prometheus", "samples_per_s", hosts)),
                     f"{line('prometheus', 'peak_mib', hosts) / 1024:,.1f} GiB", f"{line('victoria-metrics', 'peak_mib', hosts) / 1024:,.1f} GiB",
                     f"{table_bytes(section) * hosts / 2**30:,.1f} GiB", number(hosts * 7)])
    about = ("**On paper.** Series, memory and files grow in proportion to the hosts, so that more hosts of this kind need, at 30 s and with a "
             "file for each day:")
    head = ["hosts", "series", "samples/s", "Prometheus", "VictoriaMetrics", "tables per day", "files per day"]
    return [about, "", *table(head, rows)]


def seconds(lap):
    """Returns CPU time, and elapsed time in brackets."""
    return f"{lap['cpu_s']:,.1f} s ({lap['s']:,.1f} s)"


def engines(sections):
    """Time and memory of all views, by engine, layout and hosts."""
    rows = []
    for one in (one for section in sections for one in section["engines"]):
        layout = "day" if one["file_hours"] == 24 else "hour"
        if one["total"] is None:
            rows.append([number(one["hosts"]), layout, ENGINES[one["engine"]], "stopped", "", ""])
            continue
        rows.append([number(one["hosts"]), layout, one["version"], seconds(one["start"]), seconds(one["total"]), f"{one['peak_mib']:,.0f} MiB"])
    return table(["hosts", "file for each", "engine", "start", "all nine views", "memory"], rows)


def views(section):
    """Time of each view, and how its CPU time grows from each number of hosts to the next."""
    rows, counts = [], sorted({one["hosts"] for one in section["engines"]})
    for view in section["engines"][0]["views"]:
        for engine in dict.fromkeys(one["engine"] for one in section["engines"]):
            found = {one["hosts"]: one["views"][view] for one in section["engines"] if one["engine"] == engine and one["total"]}
            pairs = [(found[few]["cpu_s"], found[many]["cpu_s"]) for few, many in itertools.pairwise(counts) if few in found and many in found]
            growth = ", ".join(f"{after / max(before, 0.01):,.1f}" for before, after in pairs)
            rows.append([f"`{view}`", ENGINES[engine], *(f"{found[count]['cpu_s']:,.2f} s ({found[count]['s']:,.2f} s)" if count in found else "–" for count in counts),
                         growth])
    return table(["view", "engine", *(f"{count:,} hosts" for count in counts), "growth of CPU time"], rows)


def page():
    results = json.loads(RESULTS.read_text())
    sections = [results[name] for name in ("tables_24h", "tables_1h") if name in results]
    facts = (results.get("metrics") or sections[0])["facts"]
    about = ("`./dev bench fleet` replays three recordings of real programs on an H200 as hosts: stretched to two hours, repeated with "
             f"other pids. 12 days differ, the other hosts are copies of them. {machine(facts)}. The machine was busy with other "
             "work, so that elapsed times are several times those of an idle one: compare CPU times, and how they grow.")
    lines = [about, ""]
    if "metrics" in results:
        lines += metrics(results["metrics"])
    if sections:
        about = ("All views over one day of all hosts, engines limited to 3 GiB (Spark: of heap) and two threads: CPU time (user and system), and elapsed time in "
                 "brackets. Start is that of the engine and the creation of the views. The answers of the engines are equal, and sums over "
                 "the tables are those that the hosts reported:")
        lines += [*sizes(sections), about, "", *engines(sections)]
        lines += ["Each view, with a file for each day, and the factor of its CPU time from each number of hosts to the next:", ""]
        lines += views(sections[0])
        lines += on_paper(results["metrics"], sections[0]) if "metrics" in results else []
    return "\n".join(line if line.startswith("|") else textwrap.fill(line, 120) for line in lines)


def main():
    text = PAGE.read_text()
    new = re.sub(r"(<!-- fleet results -->\n).*?(<!-- end -->)", lambda found: found[1] + page() + found[2], text, flags=re.DOTALL)
    if "--check" in sys.argv:
        sys.exit(new != text)
    PAGE.write_text(new)


main()
