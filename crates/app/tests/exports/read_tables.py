#!/usr/bin/env python3
"""Reads allocations with other readers, and prints memory never freed: `csv FILE`, `json FILE`, or
`parquet DIR [RECORDING]`. For Parquet, DuckDB and pyarrow must agree, and events must match the recording."""

import csv
import glob
import json
import os
import sys

NEVER_FREED = ("live", "process_exited")
TEXTS = ("process", "site", "stack")


def summed(rows):
    """Returns bytes and allocations that were never freed, by kind."""
    sums = {}
    for row in rows:
        if row["end_reason"] in NEVER_FREED:
            bytes, count = sums.get(row["kind"], (0, 0))
            sums[row["kind"]] = (bytes + int(row["bytes"]), count + 1)
    return sums


def from_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        assert "\r\n" in file.readline()
        file.seek(0)
        rows = list(csv.DictReader(file, strict=True))
    assert all(None not in row and None not in row.values() for row in rows), "a row lacks a column"
    return rows


def from_json(path):
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    for row in rows:
        row["stack"] = "\n".join(row["stack"])
    return rows


def from_parquet(directory, recording):
    import duckdb
    import pyarrow.dataset
    import pyarrow.parquet

    files = os.path.join(directory, "allocations", "*", "*", "*.parquet")
    table = pyarrow.dataset.dataset(os.path.join(directory, "allocations"), partitioning="hive").to_table()
    # Python's datetime has no nanoseconds.
    for column in ("alloc_time", "free_time"):
        index = table.schema.get_field_index(column)
        table = table.set_column(index, column, table[column].cast("int64"))
    rows = table.to_pylist()
    query = f"""
        SELECT kind, sum(bytes)::BIGINT, count(*) FROM read_parquet('{files}', hive_partitioning = true)
        WHERE end_reason IN ('live', 'process_exited') GROUP BY kind
    """
    duck = {kind: (bytes, count) for kind, bytes, count in duckdb.sql(query).fetchall()}
    assert duck == summed(rows), "DuckDB and pyarrow do not agree"
    if recording:
        import pyarrow as pa

        events = glob.glob(os.path.join(directory, "events", "*", "*", "*.parquet"))
        # A single file: its directories are not columns then.
        found = pa.concat_tables([pyarrow.parquet.ParquetFile(path).read() for path in sorted(events)])
        expected = pa.ipc.open_stream(recording).read_all()
        for name in expected.schema.names:
            assert found[name].equals(expected[name]), name
    return rows


def normalized(row):
    """Returns a row in the same form for every format."""
    number = lambda text: None if text in (None, "") else int(str(text), 0)
    numbers = [number(row[column]) for column in ("pid", "address", "device", "bytes", "alloc_ns", "free_ns", "stream")]
    return numbers + [row[column] or None for column in ("kind", "address_type", "end_reason", "process", "site")]


form, path = sys.argv[1:3]
if form == "csv":
    rows = from_csv(path)
elif form == "json":
    rows = from_json(path)
else:
    rows = from_parquet(path, sys.argv[3] if len(sys.argv) > 3 else None)
texts = sorted({str(row[column]) for row in rows for column in TEXTS if row[column] not in (None, "")})
plain = sorted((normalized(row) for row in rows), key=str)
json.dump({"never_freed": summed(rows), "rows": rows, "plain": plain, "texts": texts}, sys.stdout)
