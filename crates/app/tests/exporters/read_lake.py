#!/usr/bin/env python3
"""Reads the tables of an agent with DuckDB and pyarrow, which must agree, and prints JSON:
with `read_lake.py DIR` all rows of all tables by host, with `read_lake.py DIR PAGE` also the columns
that DuckDB finds and the results of the queries on the page, with `read_lake.py DIR PACK` those of the views in a
directory."""

import glob
import json
import os
import re
import sys

import duckdb
import pyarrow.dataset

directory = sys.argv[1]
os.chdir(os.path.dirname(directory))
assert os.path.basename(directory) == "lake"
duckdb.sql("SET TimeZone = 'UTC'")
TABLES = ("metrics", "gpus", "processes", "devices", "sites", "suspects", "peaks", "incidents")


def numbers(files):
    """All columns, with other times than `time` as microseconds."""
    known = duckdb.sql(f"SELECT * FROM read_parquet('{files}', hive_partitioning = true)").columns
    times = [name for name in ("agent_start", "peak_time", "incident_time") if name in known]
    replaced = ", ".join(f"epoch_us({name}) AS {name}" for name in times)
    return f"* REPLACE ({replaced})" if times else "*"


def rows(table):
    files = os.path.join(directory, table, "*", "*", "*.parquet")
    duck = duckdb.sql(f"SELECT * EXCLUDE (time), epoch_us(time) AS micros FROM (SELECT {numbers(files)} FROM read_parquet('{files}', hive_partitioning = true))")
    duck = [dict(zip(duck.columns, row)) for row in duck.fetchall()]
    arrow = pyarrow.dataset.dataset(os.path.join(directory, table), partitioning="hive").to_table()
    index = arrow.schema.get_field_index("time")
    arrow = arrow.set_column(index, "micros", arrow["time"].cast("int64"))
    for name in ("agent_start", "peak_time", "incident_time"):
        if name in arrow.schema.names:
            index = arrow.schema.get_field_index(name)
            arrow = arrow.set_column(index, name, arrow[name].cast("int64"))
    arrow = arrow.to_pylist()
    for row in duck + arrow:
        row["date"] = str(row["date"])
        if "labels" in row:
            row["labels"] = dict(row["labels"] or {})
    ordered = lambda found: sorted(json.dumps(row, sort_keys=True) for row in found)
    assert ordered(duck) == ordered(arrow), f"DuckDB and pyarrow do not agree on {table}"
    return duck


found = {}
for table in TABLES:
    if glob.glob(os.path.join(directory, table, "*", "*", "*.parquet")):
        found[table] = rows(table)
if len(sys.argv) > 2 and os.path.isdir(sys.argv[2]):
    for name in ("duckdb.sql", "views.sql"):
        with open(os.path.join(sys.argv[2], name), encoding="utf-8") as file:
            text = file.read()
        duckdb.sql(text)
    for view in re.findall(r"(?m)^CREATE OR REPLACE VIEW (\w+)", text):
        result = duckdb.sql(f"SELECT COLUMNS(*)::VARCHAR FROM {view}")
        found[view] = [dict(zip(result.columns, row)) for row in result.fetchall()]
elif len(sys.argv) > 2:
    found["columns"] = {}
    for table in TABLES:
        if table in found:
            files = os.path.join(directory, table, "*", "*", "*.parquet")
            described = duckdb.sql(f"DESCRIBE SELECT * FROM read_parquet('{files}', hive_partitioning = false)")
            found["columns"][table] = [[row[0], row[1]] for row in described.fetchall()]
    with open(sys.argv[2], encoding="utf-8") as file:
        blocks = [block.split("```")[0] for block in file.read().split("```sql\n")[1:]]
    found["query_results"] = []
    for block in blocks:
        # As text: Python's datetime would need another library.
        result = duckdb.sql(f"SELECT COLUMNS(*)::VARCHAR FROM ({block.strip().rstrip(';')})")
        found["query_results"].append({"columns": result.columns, "rows": result.fetchall()})
json.dump(found, sys.stdout)
