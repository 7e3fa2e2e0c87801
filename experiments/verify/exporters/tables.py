#!/usr/bin/env python3
"""Writes Parquet tables of several hosts to one directory and reads it with ClickHouse, Spark and DuckDB.

usage: tables.py --vramscope PATH --sim DIR [--python PATH] [--keep DIR]

Every row and the result of every view in contrib/fleet must be the same in all engines, and the sums over the tables those of
the agents and the simulated driver. One host has two agents, one after the other, one has tables of version 1 only, and in the
end files are uploaded twice, which must change no view. Then all engines answer the cases of cases.py. Needs root and Java 17;
`--python` is a Python with chdb, pyspark, duckdb and pyarrow. Without it a virtual environment is created (1.3 GB). `--keep` leaves the tables in a directory.
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from hosts import Checks, Host, wait

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = ["chdb==4.4.0", "pyspark==4.3.0", "duckdb==2.0.0", "pyarrow==26.0.1"]
NAMES = ["node-1", "node-2", "gpu.example.org"]
OLD = "node-old"
TABLES = ("gpus", "processes", "devices", "sites", "suspects", "peaks", "incidents")
CONFIG = '[exporters.parquet]\ndir = "{}/lake"\ninterval = "1s"\nrotate_interval = "4s"\n'
# Rewrites files with the columns of version 1.
TO_OLD = """
import sys, pyarrow.parquet as parquet
new = {"schema_version", "agent_start", "covers_seconds", "program", "release", "user", "job", "used_bytes", "untracked_bytes",
       "pool_unused_bytes", "cache_bytes", "cache_used_bytes", "launches_total", "fingerprint"}
for path in sys.argv[1:]:
    table = parquet.ParquetFile(path).read()
    kept = new - {"used_bytes", "untracked_bytes"} if "/devices/" in path else new
    parquet.write_table(table.drop_columns([name for name in table.column_names if name in kept]), path)
"""


def environment(directory):
    subprocess.run([sys.executable, "-m", "venv", directory / "python"], check=True)
    python = directory / "python/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
    return python


def start(name, directory, options, release):
    """Starts a host whose programs belong to a release and a job."""
    os.environ.update(SENTRY_RELEASE=release, SLURM_JOB_ID="17", SIM_MEMORY="4G")
    return Host(name, directory, options.vramscope, options.sim, CONFIG.format(directory))


def write_tables(directory, options):
    """Returns the oracle of each process, and the sum of live memory that the agents reported last."""
    hosts, oracles, reported = [], {}, 0
    try:
        first = start("node-1", directory / "first", options, "train@1.4.1")
        hosts.append(first)
        first.settle(first.start("train", "--steps", "20", "--step-ms", "2"))
        first.end()
        first.end_programs()
        for name, release in zip(NAMES, ("train@1.4.2", "train@1.4.2", "train@1.5.0")):
            hosts.append(start(name, directory, options, release))
        for host in hosts[1:]:
            for program in (["train", "--steps", "40", "--step-ms", "2"], ["kinds"], ["--device", "1", "oom", "--chunk-mb", "300"]):
                host.settle(host.start(*program))
        hosts[1].start("leaks", "fast-leak", "--seconds", "600")
        wait("a suspect", lambda: hosts[1].get("/api/v1/suspects")["suspects"], timeout=120)
        wait("an incident", lambda: hosts[1].get("/api/v1/incidents")["incidents"])
        hosts[1].programs.pop().kill()
        for host in hosts[1:]:
            mine = [program.pid for program in host.programs]
            reported += sum(one["live_bytes"] for one in host.get("/api/v1/processes")["processes"] if one["pid"] in mine)
        for host in hosts[1:]:
            host.end()
        for host in hosts[1:]:
            oracles.update({(host.name, pid): oracle for pid, oracle in host.end_programs().items()})
    finally:
        for host in hosts:
            host.agent.kill()
            for program in host.programs:
                program.kill()
    return oracles, reported


def add_old_host(lake, python):
    """Copies the tables that version 1 had, as those of a host with version 1."""
    for table in ("metrics", "processes", "devices", "sites"):
        shutil.copytree(lake / table / f"host={NAMES[0]}", lake / table / f"host={OLD}")
        files = [] if table == "metrics" else list((lake / table / f"host={OLD}").rglob("*.parquet"))
        subprocess.run([python, "-c", TO_OLD, *files], check=True)


def read(engine, lake, python):
    done = subprocess.run([python, "-B", HERE / "engines.py", engine, lake], capture_output=True, text=True, check=False,
                          env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})
    if done.returncode != 0:
        sys.exit(f"{engine}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--sim", required=True)
    parser.add_argument("--python")
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        python = options.python or environment(directory)
        # Both agents of the first host write to one directory.
        (directory / "first").mkdir()
        (directory / "lake").mkdir()
        (directory / "first/lake").symlink_to(directory / "lake")
        oracles, reported = write_tables(directory, options)
        lake = directory / "lake"
        add_old_host(lake, python)
        results = {engine: read(engine, lake, python) for engine in ("duckdb", "clickhouse", "spark")}
        compare(results, checks)
        compare_sums(results["duckdb"]["views"], oracles, reported, checks)
        duplicate(lake)
        again = read("duckdb", lake, python)["views"]
        for view, rows in results["duckdb"]["views"].items():
            if view not in TABLES:
                checks.equal(f"{view}: the same after a second upload of every file", again[view] == rows, True)
        checks.equal("rows of processes after the second upload", len(again["processes"]),
                     2 * len(results["duckdb"]["views"]["processes"]))
        cases = subprocess.run([python, "-B", HERE / "cases.py", directory / "cases", *results], check=False)
        checks.equal("status of the cases with known answers", cases.returncode, 0)
        if options.keep:
            shutil.copytree(lake, options.keep / "lake")
    checks.end()


def duplicate(lake):
    """Copies every file, as an upload does that is repeated under another name."""
    for path in list(lake.rglob("part-*.parquet")):
        shutil.copy(path, path.with_name(path.name.replace("part-", "part-again-")))


def compare(results, checks):
    """Compares the rows of all engines."""
    duckdb = results["duckdb"]["views"]
    for engine, result in results.items():
        print(f"     {result['version']}")
        for view, rows in duckdb.items():
            different = sum(ours != theirs for ours, theirs in zip(result["views"][view], rows))
            different += abs(len(result["views"][view]) - len(rows))
            checks.equal(f"{engine}: of {len(rows)} rows of {view}, different from DuckDB", different, 0)
            checks.equal(f"{engine}: {view} has rows", len(rows) > 0, True)


def compare_sums(views, oracles, reported, checks):
    """Compares the last row of each process with the driver, and their sum with what the agents reported."""
    last = {}
    for row in sorted(views["processes"], key=lambda row: row["time"]):
        if (row["host"], row["pid"]) in oracles:
            last[row["host"], row["pid"]] = row
    for key, oracle in oracles.items():
        ours = [last[key][name] for name in ("live_bytes", "peak_bytes", "allocations_total", "frees_total")]
        checks.equal(f"{key[0]}: oracle of a process", ours,
                     [oracle[name] for name in ("live_bytes", "peak_bytes", "allocations", "frees")])
    checks.equal("live memory over all hosts, as the agents reported it", sum(row["live_bytes"] for row in last.values()), reported)
    coverage = {row["host"]: row for row in views["coverage_by_host"]}
    checks.equal("agents of node-1", coverage["node-1"]["agent_starts"], 2)
    spans = {}
    for row in (row for row in views["gpus"] if row["host"] == "node-1"):
        spans.setdefault(row["agent_start"], set()).add(datetime.datetime.fromisoformat(row["time"]))
    sampled = sum((max(times) - min(times)).total_seconds() for times in spans.values())
    # The view rounds each sample down to milliseconds.
    missing = sampled - coverage["node-1"]["covered_hours"] * 3600
    checks.equal("sampled seconds of node-1, without the time between its agents", abs(missing) < coverage["node-1"]["samples"] / 1000, True)
    releases = [row["release"] for row in sorted(views["growth_by_release"], key=lambda row: row["first_seen"])]
    checks.equal("releases, in the order of their start", releases, ["train@1.4.1", "train@1.4.2", "train@1.5.0"])
    versions = {row["schema_version"] for row in views["processes"]}
    checks.equal("versions of the schema in processes", versions, {None, 2})


main()
