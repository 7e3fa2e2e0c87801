#!/usr/bin/env python3
"""Measures recordings: bytes per event, events written and read per second, against JSON lines of Python.

One run each, with the same events. Needs the environment of tools/python-env; `./dev bench files` runs it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import pyarrow as pa

EVENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")


def record(path):
    """Writes and reads a recording with the example program of the formats crate."""
    command = ["cargo", "run", "--release", "--locked", "--quiet", "-p", "vramscope-formats", "--example", "recording"]
    result = subprocess.run([*command, "--", str(EVENTS), path], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(result.stdout)


def json_lines(rows, path):
    """Writes and reads the events as JSON lines."""
    start = time.perf_counter()
    with open(path, "w") as file:
        for row in rows:
            file.write(json.dumps(row))
            file.write("\n")
    written = time.perf_counter()
    with open(path) as file:
        again = [json.loads(line) for line in file]
    read = time.perf_counter()
    assert again == rows
    return {"bytes": os.path.getsize(path), "write_s": written - start, "read_s": read - written}


def events(path):
    """Yields the rows of a recording as dicts, without null values."""
    for batch in pa.ipc.open_stream(path):
        used = [name for name in batch.schema.names if batch[name].null_count < batch.num_rows]
        for row in batch.select(used).to_pylist():
            if row["type"] in ("allocate", "free"):
                yield {name: value for name, value in row.items() if value is not None}


def main():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "run.arrows")
        recording = record(path)
        rows = list(events(path))
        assert len(rows) == EVENTS
        lines = json_lines(rows, os.path.join(directory, "run.jsonl"))
    values = [
        ("bytes per event", recording["bytes"] / EVENTS, lines["bytes"] / EVENTS, "JSON / recording"),
        ("events written per second", EVENTS / recording["write_s"], EVENTS / lines["write_s"], "recording / JSON"),
        ("events read per second", EVENTS / recording["read_s"], EVENTS / lines["read_s"], "recording / JSON"),
    ]
    print(f"{EVENTS} events\n\n| | recording | JSON lines | ratio |\n|---|---|---|---|")
    for name, mine, other, ratio in values:
        better = other / mine if ratio.startswith("JSON") else mine / other
        print(f"| {name} | {mine:,.1f} | {other:,.1f} | {better:.1f} ({ratio}) |")


main()
