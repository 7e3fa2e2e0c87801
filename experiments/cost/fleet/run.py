#!/usr/bin/env python3
"""Measures a fleet of simulated hosts: scraping and dashboards, and tables with their views in three engines.

usage: run.py [--hosts 10,100,1000] [--parts metrics,tables] [--hours 24] [--file-hours 24,1] [--engines …] [--seconds 120] [--results FILE] …

Every host replays a recording of real programs on an H200, stretched to two hours and repeated with other pids
(`replay_host`). Prometheus and VictoriaMetrics scrape all hosts every 30 seconds, evaluate the rules of contrib/prometheus,
and answer the queries of all panels in contrib/grafana. DuckDB, ClickHouse and Spark read the tables of all hosts and
answer the views of contrib/fleet; their answers must be equal, and sums over the tables those of the hosts. One file for each
hour is measured with at most 100 hosts. Needs no root; Prometheus, VictoriaMetrics with vmalert, Java 17, and a Python with
chdb, pyspark and duckdb (`--python`), or the network to install them into target/bench/fleet-python (1.3 GB). 1,000 hosts need
4 GB of disk, an engine 3 GiB of memory.
"""
import argparse
import os
import shutil
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
    parser.add_argument("--file-hours", default="24,1", help="hours of rows in a file, one layout for each")
    parser.add_argument("--seconds", type=int, default=120, help="duration of scraping for each number of hosts")
    parser.add_argument("--engines", default="duckdb,clickhouse,spark")
    parser.add_argument("--timeout", type=int, default=900, help="limit of one engine in seconds")
    parser.add_argument("--replay", default=os.path.join(ROOT, "target/test-release/examples/replay_host"))
    parser.add_argument("--python", help="Python with chdb, pyspark and duckdb")
    parser.add_argument("--scratch", help="directory in which replayed days are kept for the next run [default: a temporary one]")
    parser.add_argument("--machine", default="build machine")
    parser.add_argument("--results", default=os.path.join(ROOT, "experiments/results/fleet/results.json"))
    found = parser.parse_args()
    found.hosts = [int(number) for number in found.hosts.split(",")]
    found.file_hours = [int(number) for number in found.file_hours.split(",")]
    return found


def environment():
    """Returns a Python with the engines, which is kept for the next run."""
    directory = Path(ROOT, "target/bench/fleet-python")
    python, installed = directory / "bin/python", directory / "installed"
    if not installed.exists() or installed.read_text().split() != tables.PACKAGES:
        print(f"installing {', '.join(tables.PACKAGES)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *tables.PACKAGES], check=True)
        installed.write_text("\n".join(tables.PACKAGES))
    return python


def main():
    chosen = options()
    kill_children_at_exit()
    if not os.path.exists(chosen.replay):
        sys.exit(f"{chosen.replay} not found: run ./dev bench fleet, which builds it")
    facts = {**machine.measurement_facts(chosen.replay), "hours": chosen.hours}
    with tempfile.TemporaryDirectory(dir=chosen.scratch) as scratch:
        scratch = Path(scratch)
        kept = Path(chosen.scratch) if chosen.scratch else scratch

        def report(text):
            print(text, flush=True)

        def store(section, value):
            results.store(chosen.results, chosen.machine, section, value, facts)

        if "metrics" in chosen.parts:
            missing = scrape.available()
            if missing:
                sys.exit(f"not installed: {', '.join(missing)}; install prometheus and victoria-metrics")
            variants = kept / f"variants-{chosen.hours}-{chosen.file_hours[0]}"
            hosts.make_variants(chosen.replay, variants, chosen.hours, chosen.file_hours[0])
            scrape.measure(variants / "metrics", scratch, chosen, report, lambda found: store("metrics", found))
        if "tables" in chosen.parts:
            python = chosen.python or environment()
            for hours in chosen.file_hours:
                tables.measure(python, kept / f"variants-{chosen.hours}-{hours}", scratch / f"lake-{hours}/lake", hours, chosen, report,
                               lambda found, section=f"tables_{hours}h": store(section, found))
                shutil.rmtree(scratch / f"lake-{hours}")


main()
