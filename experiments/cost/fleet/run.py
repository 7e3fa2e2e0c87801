#!/usr/bin/env python3
"""Measures a fleet of simulated hosts: scraping and dashboards, and tables with their views in three engines.

usage: run.py [--hosts 10,100,1000] [--parts metrics,tables] [--hours 24] [--file-hours 1] [--engines …] [--seconds 120] [--results FILE] …

Every host replays a recording of real programs on an H200, stretched to two hours and repeated with other pids
(`replay_host`). Prometheus and VictoriaMetrics scrape all hosts every 30 seconds, evaluate the rules of contrib/prometheus,
and answer the queries of all panels in contrib/grafana. DuckDB, ClickHouse and Spark read the tables of all hosts and
answer the views of contrib/fleet; their answers must be equal, and sums over the tables those of the hosts. Needs no root;
Prometheus, VictoriaMetrics with vmalert, Java 17, and a Python with chdb, pyspark and duckdb (`--python`), or the network
to install them into a virtual environment (1.3 GB). 1,000 hosts need 4 GB of disk per layout, engines 3 GiB of memory.
"""
import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parents[1]))

import hosts
import scrape
import tables
from lib import machine, results
from lib.paths import ROOT
from lib.processes import kill_children_at_exit


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="10,100,1000", help="numbers of hosts, increasing")
    parser.add_argument("--parts", default="metrics,tables")
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--file-hours", type=int, default=1, help="hours of rows in a file")
    parser.add_argument("--seconds", type=int, default=120, help="duration of scraping for each number of hosts")
    parser.add_argument("--engines", default="duckdb,clickhouse,spark")
    parser.add_argument("--timeout", type=int, default=900, help="limit of one engine in seconds")
    parser.add_argument("--build", default=os.path.join(ROOT, "target/release"))
    parser.add_argument("--python", help="Python with chdb, pyspark and duckdb")
    parser.add_argument("--scratch", help="directory in which replayed days are kept for the next run [default: a temporary one]")
    parser.add_argument("--machine", default="build machine")
    parser.add_argument("--results", default=os.path.join(ROOT, "experiments/results/fleet/results.json"))
    found = parser.parse_args()
    found.hosts = [int(number) for number in found.hosts.split(",")]
    return found


def environment(directory):
    subprocess.run([sys.executable, "-m", "venv", directory / "python"], check=True)
    python = directory / "python/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *tables.PACKAGES], check=True)
    return python


def main():
    chosen = options()
    kill_children_at_exit()
    replay = Path(chosen.build, "examples/replay_host")
    if not replay.exists():
        sys.exit(f"{replay} not found: run ./dev bench fleet, which builds it")
    facts = machine.measurement_facts(os.path.join(chosen.build, "vramscope"))
    with tempfile.TemporaryDirectory(dir=chosen.scratch) as scratch:
        scratch = Path(scratch)
        kept = Path(chosen.scratch) if chosen.scratch else scratch
        variants = kept / f"variants-{chosen.hours}-{chosen.file_hours}"

        def report(text):
            print(text, flush=True)

        def store(section, value):
            results.store(chosen.results, chosen.machine, section, value, {**facts, "hours": chosen.hours})

        if "metrics" in chosen.parts:
            missing = scrape.available()
            if missing:
                sys.exit(f"not installed: {', '.join(missing)}; install prometheus and victoria-metrics")
            hosts.make_variants(replay, variants, chosen.hours, chosen.file_hours)
            scrape.measure(variants / "metrics", scratch, chosen, report, lambda found: store("metrics", found))
        if "tables" in chosen.parts:
            python = chosen.python or environment(scratch)
            section = f"tables_{chosen.file_hours}h"
            tables.measure(python, replay, variants, scratch / "lake", chosen, report, lambda found: store(section, found))


main()
