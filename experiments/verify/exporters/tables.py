#!/usr/bin/env python3
"""Writes Parquet tables of several hosts to one directory and reads it with ClickHouse, Spark and DuckDB.

usage: tables.py --vramscope PATH --sim DIR [--python PATH]

Every row and the results of the queries of docs/operations/exporters.md must be the same in all engines. Needs root and
Java 17; `--python` is a Python with chdb, pyspark and duckdb. Without it a virtual environment is created (1.2 GB).
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from hosts import Checks, Host, wait

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = ["chdb==4.4.0", "pyspark==4.3.0", "duckdb==2.0.0"]
NAMES = ["node-1", "node-2", "gpu.example.org"]
CONFIG = '[exporters.parquet]\ndir = "{}/lake"\ninterval = "1s"\nrotate_interval = "4s"\n'


def environment(directory):
    subprocess.run([sys.executable, "-m", "venv", directory / "python"], check=True)
    python = directory / "python/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
    return python


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--sim", required=True)
    parser.add_argument("--python")
    options = parser.parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        python = options.python or environment(directory)
        hosts = [Host(name, directory, options.vramscope, options.sim, CONFIG.format(directory)) for name in NAMES]
        oracles = {}
        try:
            for host in hosts:
                pids = [host.start("train", "--steps", "40", "--step-ms", "2"), host.start("kinds")]
                for pid in pids:
                    host.settle(pid)
            parts = lambda: len(list((directory / "lake/processes").rglob("part-*.parquet")))
            wait("several files of each host", lambda: parts() >= 4 * len(hosts))
            for host in hosts:
                host.end()
            for host in hosts:
                oracles.update({(host.name, pid): oracle for pid, oracle in host.end_programs().items()})
        finally:
            for host in hosts:
                host.agent.kill()
                for program in host.programs:
                    program.kill()
        results = {}
        for engine in ("duckdb", "clickhouse", "spark"):
            done = subprocess.run([python, "-B", HERE / "engines.py", engine, directory / "lake"], capture_output=True, text=True,
                                  env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, check=False)
            if done.returncode != 0:
                sys.exit(f"{engine}: {done.stderr[-3000:]}")
            results[engine] = json.loads(done.stdout.splitlines()[-1])
            print(f"     {results[engine]['version']}")
        report(results, oracles, checks)
    checks.end()


def report(results, oracles, checks):
    duckdb = results.pop("duckdb")
    for table, rows in duckdb["tables"].items():
        checks.equal(f"{table}: hosts in DuckDB", sorted({row["host"] for row in rows}), sorted(NAMES))
        for engine, result in results.items():
            different = sum(ours != theirs for ours, theirs in zip(result["tables"][table], rows))
            different += abs(len(result["tables"][table]) - len(rows))
            checks.equal(f"{table}: of {len(rows)} rows, different in {engine}", different, 0)
    for engine, result in results.items():
        for number, (query, rows) in enumerate(result["queries"].items()):
            checks.equal(f"{engine}: query {number + 1} of the page, {len(rows)} rows, as DuckDB", rows == duckdb["queries"][query], True)
            if rows != duckdb["queries"][query]:
                print(rows[:5], duckdb["queries"][query][:5])
    last = {}
    for row in sorted(duckdb["tables"]["processes"], key=lambda row: row["time"]):
        if (row["host"], row["pid"]) in oracles:
            last[row["host"], row["pid"]] = row
    for key, oracle in oracles.items():
        ours = [last[key][name] for name in ("live_bytes", "peak_bytes", "allocations_total", "frees_total")]
        checks.equal(f"{key[0]}: oracle of a process", ours,
                     [oracle[name] for name in ("live_bytes", "peak_bytes", "allocations", "frees")])


main()
