#!/usr/bin/env python3
"""Reads the tables of an agent with DuckDB and pyarrow, which must agree, and prints JSON:
with `read_lake.py DIR` all rows of three tables by host, with `read_lake.py DIR PAGE` also the columns
that DuckDB finds and the results of the queries on the page."""

import glob
import json
import os
import sys

import duckdb
import pyarrow.dataset

directory = sys.argv[1]
os.chdir(os.path.dirname(directory))
assert os.path.basename(directory) == "lake"
duckdb.sql("SET TimeZone = 'UTC'")


def rows(table):
    files = os.path.join(directory, table, "*", "*", "*.parquet")
    duck = duckdb.sql(f"SELECT * EXCLUDE (time), epoch_us(time) AS micros FROM read_parquet('{files}', hive_partitioning = true)")
    duck = [dict(zip(duck.columns, row)) for row in duck.fetchall()]
    arrow = pyarrow.dataset.dataset(os.path.join(directory, table), partitioning="hive").to_table()
    index = arrow.schema.get_field_index("time")
    arrow = arrow.set_column(index, "micros", arrow["time"].cast("int64")).to_pylist()
    for row in duck + arrow:
        row["date"] = str(row["date"])
        if "labels" in row:
            row["labels"] = dict(row["labels"] or {})
    ordered = lambda found: sorted(json.dumps(row, sort_keys=True) for row in found)
    assert ordered(duck) == ordered(arrow), f"DuckDB and pyarrow do not agree on {table}"
    return duck


found = {}
for table in ("metrics", "processes", "devices", "sites"):
    if glob.glob(os.path.join(directory, table, "*", "*", "*.parquet")):
        found[table] = rows(table)
if len(sys.argv) > 2:
    found["columns"] = {}
    for table in ("metrics", "processes", "devices", "sites"):
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
