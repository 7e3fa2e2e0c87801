#!/usr/bin/env python3
"""Reads a directory of Parquet tables with one engine; prints every row and those of the views in contrib/fleet as JSON.

usage: engines.py duckdb|clickhouse|spark DIR [--views]

With `--views` the rows of the tables are left out. Seconds and CPU seconds of the start and of each view are added.
"""
import contextlib
import datetime
import decimal
import json
import os
import pathlib
import re
import sys
import time

# Limit of each engine, in GiB.
MEMORY = 3
PACK = pathlib.Path(__file__).resolve().parents[3] / "contrib" / "fleet"


def normalized(value):
    """Returns a value in a form that is the same for all engines."""
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?", value):
        return normalized(datetime.datetime.fromisoformat(value))
    return value


def statements(engine):
    """Returns the statements of the pack for an engine."""
    text = (PACK / f"{engine}.sql").read_text() + (PACK / "views.sql").read_text()
    return [one.strip() for one in re.sub(r"(?m)^--.*\n", "", text).split(";") if one.strip()]


def cpu_seconds():
    """Returns user and system time of this process and of those that it started: Spark runs in one of them."""
    stats = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
            stats[int(pid)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    ticks, family = 0, [os.getpid()]
    while family:
        parent = family.pop()
        ticks += stats.get(parent, (0, 0))[1]
        family += [pid for pid, (its_parent, _) in stats.items() if its_parent == parent]
    return ticks / os.sysconf("SC_CLK_TCK")


class Clock:
    """Elapsed and CPU time since the last call of `lap`."""

    def __init__(self):
        self.at, self.cpu = time.monotonic(), cpu_seconds()

    def lap(self):
        at, cpu = time.monotonic(), cpu_seconds()
        lap = {"s": round(at - self.at, 3), "cpu_s": round(cpu - self.cpu, 3)}
        self.at, self.cpu = at, cpu
        return lap


def with_duckdb():
    import duckdb
    duckdb.sql(f"SET memory_limit = '{MEMORY}GiB'; SET enable_progress_bar = false")

    def run_query(query):
        result = duckdb.sql(query)
        if result is None:
            return []
        # Python's time zones would need another library.
        times = [name for name, kind in zip(result.columns, result.types) if "TIME ZONE" in str(kind)]
        if times:
            result = result.select(f"* REPLACE ({', '.join(f'{name}::TIMESTAMP AS {name}' for name in times)})")
        return [dict(zip(result.columns, row)) for row in result.fetchall()]
    return f"DuckDB {duckdb.__version__}", run_query


def with_clickhouse():
    from chdb.session import Session
    session = Session()
    # Large groups go to disk, as they do in the other engines.
    settings = {"max_memory_usage": MEMORY << 30, "max_bytes_before_external_group_by": MEMORY << 28,
                "max_bytes_before_external_sort": MEMORY << 28, "output_format_json_quote_64bit_integers": 0,
                "output_format_json_quote_decimals": 0}

    def run_query(query):
        if query.startswith("CREATE"):
            return session.query(query) and []
        more = ", ".join(f"{name} = {value}" for name, value in settings.items())
        text = str(session.query(f"{query} SETTINGS {more}", "JSONEachRow"))
        return [json.loads(line) for line in text.splitlines()]
    return f"ClickHouse {run_query('SELECT version() AS version')[0]['version']}", run_query


def with_spark():
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", f"{MEMORY}g").getOrCreate()
    return f"Spark {spark.version}", lambda query: [row.asDict() for row in spark.sql(query).collect()]


def main():
    engine, directory = sys.argv[1], sys.argv[2]
    os.environ["TZ"] = "UTC"
    os.chdir(os.path.dirname(directory))
    clock = Clock()
    version, run_query = {"duckdb": with_duckdb, "clickhouse": with_clickhouse, "spark": with_spark}[engine]()
    names = []
    for statement in statements(engine):
        run_query(statement)
        names += re.findall(r"^CREATE OR REPLACE VIEW (\w+)", statement)
    if "--views" in sys.argv:
        names = [name for name in names if f"VIEW {name} " in (PACK / "views.sql").read_text()]
    views, times = {}, {"start": clock.lap()}
    for name in names:
        found = run_query(f"SELECT * FROM {name}")
        times[name] = clock.lap()
        rows = [{column: normalized(value) for column, value in row.items()} for row in found]
        views[name] = sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
        clock.lap()
    print(json.dumps({"version": version, "views": views, "times": times}, sort_keys=True))


main()
