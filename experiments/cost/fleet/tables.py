"""Tables of many hosts in DuckDB, ClickHouse and Spark: time and memory of each view, equal answers, sums of all hosts."""
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import hosts
from lib.paths import EXPERIMENTS
from lib.processes import PAGE_BYTES, kill_session, start

PACKAGES = ["chdb==4.4.0", "pyspark==4.3.0", "duckdb==2.0.0", "pyarrow==26.0.1"]
READER = Path(EXPERIMENTS, "verify/exporters/engines.py")
# Files of one table: a layout with more is not measured.
MOST_FILES = 2400
# Sums over the tables that the ledgers also report.
SUMS = """
import duckdb, sys
duckdb.sql("SET enable_progress_bar = false")
rows = duckdb.sql(f'''
    WITH samples AS (FROM read_parquet('{sys.argv[1]}/processes/*/*/*.parquet', hive_partitioning = true)),
         last AS (SELECT host, max(time) AS time FROM samples GROUP BY host)
    SELECT (SELECT count(*) FROM samples), (SELECT sum(live_bytes::HUGEINT * covers_seconds::BIGINT) FROM samples),
           (SELECT sum(live_bytes) FROM samples JOIN last USING (host, time)), (SELECT count(*) FROM samples JOIN last USING (host, time))
''').fetchall()[0]
print(*map(int, rows))
"""
# Rows of each table.
ROWS = """
import duckdb, sys
for table in sys.argv[2:]:
    print(duckdb.sql(f"SELECT count(*) FROM read_parquet('{sys.argv[1]}/lake/{table}/*/*/*.parquet')").fetchall()[0][0])
"""


def session_bytes(session):
    """Returns the resident memory of all processes of a session."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if int(file.read().rsplit(")", 1)[1].split()[3]) != session:
                    continue
            with open(f"/proc/{pid}/statm") as file:
                total += int(file.read().split()[1]) * PAGE_BYTES
        except (OSError, ValueError, IndexError):
            continue
    return total


def read(python, engine, lake, timeout):
    """Returns the answers of all views, their times, and the largest memory of the engine; None after the timeout."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = start([python, "-B", READER, engine, lake, "--views"], stdout=out, stderr=errors,
                        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})
        peak, begin = 0, time.monotonic()
        while process.poll() is None and time.monotonic() < begin + timeout:
            peak = max(peak, session_bytes(process.pid))
            time.sleep(0.1)
        if process.poll() is None:
            kill_session(process.pid)
            process.wait()
            return None
        kill_session(process.pid)
        out.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            raise SystemExit(f"{engine}: {errors.read()[-2000:]}")
        found = json.loads(out.read().splitlines()[-1])
        return {**found, "peak_bytes": peak}


def check_sums(python, lake, reports, count):
    """Compares sums over the tables with the reports of the hosts, and returns the rows of processes."""
    found = subprocess.run([python, "-c", SUMS, str(lake)], capture_output=True, text=True, check=True).stdout.split()
    rows, byte_seconds, live, running = map(int, found)
    own = [reports[number % hosts.VARIANTS] for number in range(count)]
    expected = [sum(int(one[key]) for one in own) for key in ("byte_seconds", "live_bytes", "running")]
    if [byte_seconds, live, running] != expected:
        raise SystemExit(f"{count} hosts: the tables have {[byte_seconds, live, running]}, the hosts reported {expected}")
    return rows


def measure(python, variants, lake, file_hours, options, report, save):
    """Measures one layout of files with each number of hosts, and saves the results after each engine."""
    results = {"rows_per_host": None, "tables": None, "engines": []}
    reports = hosts.make_variants(options.replay, variants, options.hours, file_hours)
    results["rows_per_host"] = sum(one["rows"] for one in reports) / len(reports)
    results["processes_per_host"] = sum(one["processes"] for one in reports) / len(reports)
    results["running_per_host"] = sum(one["running"] for one in reports) / len(reports)
    results["tables"] = hosts.table_sizes(variants)
    counts = subprocess.run([python, "-c", ROWS, variants, *results["tables"]], capture_output=True, text=True, check=True).stdout.split()
    for table, rows in zip(results["tables"].values(), counts):
        table["rows"] = int(rows) / hosts.VARIANTS
    before, skipped = 0, set()
    for count in (count for count in options.hosts if count * options.hours <= MOST_FILES * file_hours):
        begin = time.monotonic()
        hosts.add_hosts(variants, lake, before, count)
        before = count
        report(f"{count} hosts written in {time.monotonic() - begin:.0f} s")
        rows = check_sums(python, lake, reports, count)
        report(f"{count} hosts: {rows} rows of processes; sums equal those of the hosts")
        answers = {}
        for engine in options.engines.split(","):
            if engine in skipped:
                continue
            found = read(python, engine, lake, options.timeout)
            if found is None:
                skipped.add(engine)
                report(f"{count} hosts, {engine}: stopped after {options.timeout} s")
                results["engines"].append({"hosts": count, "engine": engine, "file_hours": file_hours, "total": None})
                continue
            answers[engine] = found["views"]
            times = found["times"]
            start = times.pop("start")
            total = {key: sum(one[key] for one in times.values()) for key in ("s", "cpu_s")}
            results["engines"].append({
                "hosts": count, "engine": engine, "version": found["version"], "file_hours": file_hours,
                "files": sum(1 for _ in lake.rglob("*.parquet")), "peak_mib": found["peak_bytes"] / 2**20,
                "start": start, "total": total, "views": times})
            report(f"{count} hosts, {engine}: {total['cpu_s']:.1f} s of CPU time and {total['s']:.1f} s in views, "
                   f"{found['peak_bytes'] / 2**20:.0f} MiB")
            save(results)
        check_equal(count, answers)
        report(f"{count} hosts: equal answers of {', '.join(answers)}")


def check_equal(count, answers):
    """Compares the answers of all engines."""
    first = next(iter(answers.values()))
    for engine, views in answers.items():
        different = [view for view, rows in first.items() if views[view] != rows]
        if different:
            raise SystemExit(f"{count} hosts: {engine} differs in {', '.join(different)}")
