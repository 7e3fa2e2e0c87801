#!/usr/bin/env python3
"""Lets agents of several hosts fill one folder of tables, and reads it with ClickHouse, Spark and DuckDB: every row must be the
same, and so must be what the queries of docs/operations/exporters.md answer.

usage: tables.py --vramscope PATH --sim FOLDER [--python PATH]

Needs root and Java 17; `--python` has chdb, pyspark and duckdb. Without it an environment is made for this run (1.2 GB).
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from hosts import Host, Verdict, wait

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = ["chdb==4.4.0", "pyspark==4.3.0", "duckdb==2.0.0"]
NAMES = ["node-1", "node-2", "gpu.example.org"]
SETTINGS = '[exporters.parquet]\ndir = "{}/lake"\ninterval = "1s"\nrotate_interval = "4s"\n'


def environment(folder):
    subprocess.run([sys.executable, "-m", "venv", folder / "python"], check=True)
    python = folder / "python/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
    return python


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--sim", required=True)
    parser.add_argument("--python")
    options = parser.parse_args()
    verdict = Verdict()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        python = options.python or environment(folder)
        hosts = [Host(name, folder, options.vramscope, options.sim, SETTINGS.format(folder)) for name in NAMES]
        truth = {}
        try:
            for host in hosts:
                pids = [host.start("train", "--steps", "40", "--step-ms", "2"), host.start("kinds")]
                for pid in pids:
                    host.settle(pid)
            parts = lambda: len(list((folder / "lake/processes").rglob("part-*.parquet")))  # noqa: E731
            wait("several parts of each host", lambda: parts() >= 4 * len(hosts))
            for host in hosts:
                host.end()
            for host in hosts:
                truth.update({(host.name, pid): oracle for pid, oracle in host.end_players().items()})
        finally:
            for host in hosts:
                host.agent.kill()
                for player in host.players:
                    player.kill()
        answers = {}
        for engine in ("duckdb", "clickhouse", "spark"):
            done = subprocess.run([python, "-B", HERE / "engines.py", engine, folder / "lake"], capture_output=True, text=True,
                                  env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})
            if done.returncode != 0:
                sys.exit(f"{engine}: {done.stderr[-3000:]}")
            answers[engine] = json.loads(done.stdout.splitlines()[-1])
            print(f"     {answers[engine]['version']}")
        report(answers, truth, verdict)
    verdict.end()


def report(answers, truth, verdict):
    duckdb = answers.pop("duckdb")
    for table, rows in duckdb["tables"].items():
        verdict.look(f"{table}: hosts in DuckDB", sorted({row["host"] for row in rows}), sorted(NAMES))
        for engine, answer in answers.items():
            differ = sum(ours != theirs for ours, theirs in zip(answer["tables"][table], rows))
            differ += abs(len(answer["tables"][table]) - len(rows))
            verdict.look(f"{table}: of {len(rows)} rows, those that {engine} has otherwise", differ, 0)
    for engine, answer in answers.items():
        for number, (question, rows) in enumerate(answer["questions"].items()):
            verdict.look(f"{engine}: question {number + 1} of the page, {len(rows)} rows, as DuckDB", rows == duckdb["questions"][question], True)
            if rows != duckdb["questions"][question]:
                print(rows[:5], duckdb["questions"][question][:5])
    last = {}
    for row in sorted(duckdb["tables"]["processes"], key=lambda row: row["time"]):
        if (row["host"], row["pid"]) in truth:
            last[row["host"], row["pid"]] = row
    for who, oracle in truth.items():
        ours = [last[who][name] for name in ("live_bytes", "peak_bytes", "allocations_total", "frees_total")]
        verdict.look(f"{who[0]}: the driver's own account of a process", ours,
                     [oracle[name] for name in ("live_bytes", "peak_bytes", "allocations", "frees")])


main()
