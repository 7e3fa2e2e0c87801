#!/usr/bin/env python3
"""Draws the dashboards of contrib/grafana as web pages, with data of simulated hosts in Prometheus, without Grafana.

usage: render.py DIR METRICS [--hosts 100] [--minutes 4]

METRICS is the directory of metrics that run.py replays (`--scratch DIR` keeps it). Each page shows the panels in their places,
with the answers to their queries; variables have the values of the fastest leak. Layout and colors are not those of Grafana.
"""
import argparse
import html
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parents[1]))

import scrape
from lib.chart import COLORS
from lib.processes import kill_children_at_exit, start, stop

STYLE = """body{font:13px Helvetica,Arial,sans-serif;background:#f4f5f5;margin:12px;width:1500px}h1{font-size:18px}
.grid{display:grid;grid-template-columns:repeat(24,1fr);grid-auto-rows:30px;gap:6px}.panel{background:#fff;border:1px solid #ddd;
padding:6px 8px;overflow:hidden}.panel h2{font-size:13px;margin:0 0 4px}.value{font-size:24px;text-align:center}
table{border-collapse:collapse;width:100%;font-size:12px}td,th{text-align:left;border-bottom:1px solid #eee;padding:2px 6px;
white-space:nowrap}a{color:#1b6ca8}.legend{font-size:11px}.legend span{margin-right:10px;white-space:nowrap}"""


def shown(value, unit):
    """Formats a value as Grafana does for this unit."""
    value = float(value)
    if unit == "bytes":
        for name in ("B", "KiB", "MiB", "GiB", "TiB"):
            if abs(value) < 1024 or name == "TiB":
                return f"{value:.3g} {name}"
            value /= 1024
    if unit == "s":
        return f"{value / 3600:.1f} h" if value >= 3600 else f"{value / 60:.0f} min"
    return f"{100 * value:.1f} %" if unit == "percentunit" else f"{value:.4g}"


def legend(target, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), target["legendFormat"]) or "value"


def graph(panel, answers, unit):
    """Draws the lines of a panel, the largest first."""
    lines = [(legend(target, one["metric"]), [(at, float(value)) for at, value in one["values"]]) for target, found in answers for one in found]
    lines = sorted(lines, key=lambda line: -line[1][-1][1])[:8]
    if not lines:
        return "<p>No data</p>"
    times = [at for _, points in lines for at, _ in points]
    high = max(max(value for _, value in points) for _, points in lines) or 1
    left, span = min(times), (max(times) - min(times)) or 1
    paths = []
    for rank, (_, points) in enumerate(lines):
        path = " ".join(f"{(at - left) / span * 600:.1f},{160 - value / high * 150:.1f}" for at, value in points)
        paths.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[rank % len(COLORS)]}" stroke-width="2"/>')
    names = "".join(f'<span style="color:{COLORS[rank % len(COLORS)]}">■ {html.escape(name)}: {shown(points[-1][1], unit)}</span>'
                    for rank, (name, points) in enumerate(lines))
    return f'<svg viewBox="0 0 600 165" width="100%" height="62%" preserveAspectRatio="none">{"".join(paths)}</svg><div class="legend">{names}</div>'


def table(panel, answers, unit):
    """Draws a table with the columns of the panel; cells that lead to another dashboard are links."""
    organize = next(one["options"] for one in panel["transformations"] if one["id"] == "organize")
    overrides = panel["fieldConfig"]["overrides"]
    links = {one["matcher"]["options"] for one in overrides if any(value["id"] == "links" for value in one["properties"])}
    renamed = organize.get("renameByName", {})
    rows = [{**one["metric"], "Value": shown(one["value"][1], unit)} for _, found in answers for one in found]
    names = list(organize.get("indexByName") or dict.fromkeys(name for row in rows for name in row if not organize["excludeByName"].get(name)))
    head = "".join(f"<th>{html.escape(renamed.get(name, name))}</th>" for name in names)

    def cell(row, name):
        text = html.escape(str(row.get(name, "")))
        return f"<td><a href='#'>{text}</a></td>" if renamed.get(name, name) in links else f"<td>{text}</td>"

    body = "".join("<tr>" + "".join(cell(row, name) for name in names) + "</tr>" for row in rows[:7])
    return f"<table><tr>{head}</tr>{body}</table>"


def page(name, port, chosen, begin):
    """Returns the page of a dashboard."""
    dashboard = json.loads((scrape.CONTRIB / "grafana" / f"{name}.json").read_text())
    parts = []
    for panel in dashboard["panels"]:
        at, answers = panel["gridPos"], []
        for target in panel.get("targets", []):
            window = {} if target.get("instant") else {"start": begin, "end": time.time(), "step": 5}
            answers.append((target, scrape.query(port, scrape.replaced(target["expr"], chosen), **window)))
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "none")
        draw = {"timeseries": graph, "table": table}.get(panel["type"])
        first = next((found[0]["value"][1] for _, found in answers if found and "value" in found[0]), None)
        body = draw(panel, answers, unit) if draw else ("" if panel["type"] == "row" else f'<div class="value">{shown(first, unit) if first else "–"}</div>')
        place = f"grid-column:{at['x'] + 1}/span {at['w']};grid-row:{at['y'] + 1}/span {at['h']}"
        parts.append(f'<div class="panel" style="{place}"><h2>{html.escape(panel["title"])}</h2>{body}</div>')
    about = ", ".join(f"{key} {value}" for key, value in chosen.items() if key in str(dashboard["templating"]["list"]))
    return f'<meta charset="utf-8"><style>{STYLE}</style><h1>{dashboard["title"]} ({html.escape(about) or "all hosts"})</h1><div class="grid">{"".join(parts)}</div>'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("metrics")
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=4)
    options = parser.parse_args()
    kill_children_at_exit()
    scrape.INTERVAL, scrape.TIMEOUT = 5, 5
    # Another measurement may run at the same time.
    scrape.AGENTS_PORT, scrape.PROMETHEUS_PORT = 19764, 19765
    agents = start([sys.executable, HERE / "agents.py", scrape.AGENTS_PORT, options.metrics, 5], stdout=subprocess.PIPE, text=True)
    agents.stdout.readline()
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        processes, port = scrape.prometheus(Path(directory), options.hosts)
        scrape.wait("Prometheus", lambda: scrape.value(port, "count(up)"))
        begin = time.time()
        time.sleep(60 * options.minutes)
        chosen = scrape.choose(port)
        for name in scrape.DASHBOARDS:
            (options.directory / f"{name}.html").write_text(page(name, port, chosen, begin))
        stop(processes[0], signal.SIGTERM)
    stop(agents, signal.SIGTERM)


main()
