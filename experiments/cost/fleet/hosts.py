"""Simulated hosts: recordings of real programs, replayed as days of hosts by the example `replay_host`."""
import json
import os
import shutil
import subprocess
from pathlib import Path

from lib.paths import ROOT

RECORDINGS = sorted(Path(ROOT, "crates/app/tests/fixtures/h200-leaks").glob("*.arrows"))
# Days that differ in recording, pids, jobs, pods and the time at which runs begin. Other hosts are copies of them.
VARIANTS = 12
# A Tuesday, 00:00 UTC.
START = 1763424000
# The views do not read the table of metrics: Prometheus has them.
TABLES = ("gpus", "processes", "devices", "sites", "suspects", "peaks", "incidents")


def name(number):
    return f"host-{number:06}"


def make_variants(replay, directory, hours, file_hours):
    """Writes the tables and metrics of all variants, unless they exist, and returns what each ledger reported at its end."""
    stored = directory / "reports.json"
    if stored.exists():
        return json.loads(stored.read_text())
    directory.mkdir(parents=True, exist_ok=True)
    reports = []
    for seed in range(VARIANTS):
        command = [replay, RECORDINGS[seed % len(RECORDINGS)], directory, name(seed), seed, START, hours, file_hours]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
        reports.append(json.loads(done.stdout))
    stored.write_text(json.dumps(reports))
    return reports


def add_hosts(variants, lake, first, last):
    """Copies the tables of hosts from the variants, file by file."""
    for number in range(first, last):
        for table in TABLES:
            shutil.copytree(variants / "lake" / table / f"host={name(number % VARIANTS)}", lake / table / f"host={name(number)}",
                            copy_function=shutil.copyfile)


def table_sizes(variants):
    """Returns files and bytes of each table, per host and day, as the mean of all variants."""
    sizes = {}
    for table in (*TABLES, "metrics"):
        files = [path for path in (variants / "lake" / table).rglob("*.parquet")]
        sizes[table] = {"files": len(files) / VARIANTS, "bytes": sum(os.path.getsize(path) for path in files) / VARIANTS}
    return sizes
