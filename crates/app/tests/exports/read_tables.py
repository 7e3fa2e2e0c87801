#!/usr/bin/env python3
"""Reads allocations with other people's readers, and prints what was never freed: `csv FILE`, `json FILE`, or
`parquet FOLDER [RECORDING]`. Of Parquet, DuckDB and pyarrow must agree, and the events must be those of the recording."""

import csv
import glob
import json
import os
import sys

NEVER_FREED = ("live", "process_exited")
TEXTS = ("process", "site", "stack")


def summed(rows):
    """Bytes and allocations that were never freed, by kind."""
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
    assert all(None not in row and None not in row.values() for row in rows), "each row has every column"
    return rows


def from_json(path):
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    for row in rows:
        row["stack"] = "\n".join(row["stack"])
    return rows


def from_parquet(folder, recording):
    import duckdb
    import pyarrow.dataset
    import pyarrow.parquet

    files = os.path.join(folder, "allocations", "*", "*", "*.parquet")
    table = pyarrow.dataset.dataset(os.path.join(folder, "allocations"), partitioning="hive").to_table()
    # Python's own times have no nanoseconds.
    for column in ("alloc_time", "free_time"):
        place = table.schema.get_field_index(column)
        table = table.set_column(place, column, table[column].cast("int64"))
    rows = table.to_pylist()
    query = f"""
        SELECT kind, sum(bytes)::BIGINT, count(*) FROM read_parquet('{files}', hive_partitioning = true)
        WHERE end_reason IN ('live', 'process_exited') GROUP BY kind
    """
    duck = {kind: (bytes, count) for kind, bytes, count in duckdb.sql(query).fetchall()}
    assert duck == summed(rows), "DuckDB and pyarrow agree"
    if recording:
        import pyarrow as pa

        events = glob.glob(os.path.join(folder, "events", "*", "*", "*.parquet"))
        # One file: its folders are no columns then.
        found = pa.concat_tables([pyarrow.parquet.ParquetFile(path).read() for path in sorted(events)])
        wanted = pa.ipc.open_stream(recording).read_all()
        for name in wanted.schema.names:
            assert found[name].equals(wanted[name]), name
    return rows


def plainly(row):
    """A row in the same words for every form."""
    number = lambda text: None if text in (None, "") else int(str(text), 0)  # noqa: E731
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
plain = sorted((plainly(row) for row in rows), key=str)
json.dump({"never_freed": summed(rows), "rows": rows, "plain": plain, "texts": texts}, sys.stdout)
