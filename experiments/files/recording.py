#!/usr/bin/env python3
"""What recordings cost: bytes for each event, events written and read a second, beside the naive way (one JSON
object a line, by Python's own writer). One run each, on the same events. Needs the environment that
tools/python-env makes; `./dev bench files` runs it."""

import json
import os
import subprocess
import sys
import tempfile
import time

import pyarrow as pa

EVENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def ours(path):
    command = ["cargo", "run", "--release", "--locked", "--quiet", "-p", "vramscope-formats", "--example", "recording"]
    result = subprocess.run([*command, "--", str(EVENTS), path], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(result.stdout)


def naive(rows, path):
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
    """The rows of a recording as Python has them, without what is null."""
    for batch in pa.ipc.open_stream(path):
        used = [name for name in batch.schema.names if batch[name].null_count < batch.num_rows]
        for row in batch.select(used).to_pylist():
            if row["type"] in ("allocate", "free"):
                yield {name: value for name, value in row.items() if value is not None}


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.arrows")
        recording = ours(path)
        rows = list(events(path))
        assert len(rows) == EVENTS
        lines = naive(rows, os.path.join(folder, "run.jsonl"))
    figures = [
        ("bytes for an event", recording["bytes"] / EVENTS, lines["bytes"] / EVENTS, "naive / ours"),
        ("events written a second", EVENTS / recording["write_s"], EVENTS / lines["write_s"], "ours / naive"),
        ("events read a second", EVENTS / recording["read_s"], EVENTS / lines["read_s"], "ours / naive"),
    ]
    print(f"{EVENTS} events\n\n| | recording | JSON lines | ratio |\n|---|---|---|---|")
    for name, mine, other, ratio in figures:
        better = other / mine if ratio.startswith("naive") else mine / other
        print(f"| {name} | {mine:,.1f} | {other:,.1f} | {better:.1f} ({ratio}) |")


main()
