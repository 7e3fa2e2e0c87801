#!/usr/bin/env python3
"""Measures how fast an Nsight Systems export is read, against plain Python.

usage: nsys.py [--events 10000000] [--file FILE] [--chains once|each] [--command COMMAND...]

Writes a synthetic export (SQLite) of N memory events in three processes, each event with its API call
and its backtrace, as `nsys profile --cuda-memory-usage=true --cudabacktrace=all:0` writes them. Then three
readers compute the live memory at the end and the peak:

  plain     Python's sqlite3 and a dict over the memory events alone, without stacks
  stacks    the same with the stack of each allocation, from a dict of calls and one of call chains
  command   vramscope, or the given command; FILE is appended to it

Printed are elapsed time, CPU time and its ratio to that of the command (a busy machine changes CPU time
least), and peak resident memory. Needs only Python's standard library.
"""
import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import time

MEMORY = """CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (
  start INTEGER NOT NULL, globalPid INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, address INTEGER NOT NULL, pc INTEGER NOT NULL, bytes INTEGER NOT NULL,
  memKind INTEGER NOT NULL, memoryOperationType INTEGER NOT NULL, name TEXT, correlationId INTEGER,
  streamId INTEGER, localMemoryPoolAddress INTEGER, localMemoryPoolReleaseThreshold INTEGER,
  localMemoryPoolSize INTEGER, localMemoryPoolUtilizedSize INTEGER,
  importedMemoryPoolAddress INTEGER, importedMemoryPoolProcessId INTEGER)"""
CALLS = """CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
  start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER)"""
OTHERS = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUDA_CALLCHAINS (id INTEGER NOT NULL, symbol INTEGER NOT NULL, module INTEGER NOT NULL,
  unresolved INTEGER, originalIP INTEGER, stackDepth INTEGER NOT NULL, PRIMARY KEY (id, stackDepth));
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_NAME', 'NVIDIA Nsight Systems'),
  ('EXPORT_PRODUCT_VERSION', '2025.1.3.140'), ('EXPORT_CONFIG_TIME_SHIFT', '0');
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1794704721774275447, '', '');
"""
PIDS = [4000, 4001, 4002]
STACKS = 300   # distinct call stacks
DEPTH = 9      # frames per stack
LIVE = 20_000  # live allocations, approximately
NAMES = ["cudaMalloc", "cudaFree", "cudaMalloc_v3020", "cudaFree_v3020"]


def events(count, seed=1):
    """Yields (time, process, address, bytes, free?, stack) of a program that leaks one allocation in a thousand."""
    rng = random.Random(seed)
    live = []
    now, fresh = 400_000_000, 0x7F00_0000_0000
    unused = []
    for _ in range(count):
        now += rng.randrange(500, 20_000)
        if live and (len(live) > LIVE or rng.random() < 0.5):
            at = rng.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            process, address, size, stack, leaks = live.pop()
            if not leaks:
                unused.append(address)
                yield now, process, address, size, 1, stack
                continue
        address = unused.pop() if unused else fresh
        if address == fresh:
            fresh += 1 << 21
        process = rng.randrange(3)
        stack = int(rng.random() ** 2 * STACKS)
        size = 512 * rng.randrange(1, 4096)
        live.append((process, address, size, stack, rng.random() < 0.001))
        yield now, process, address, size, 0, stack


def write(path, count, each_call):
    database = sqlite3.connect(path)
    database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + OTHERS)
    database.execute(MEMORY)
    database.execute(CALLS)
    packed = [(1 << 48) | (pid << 24) for pid in PIDS]
    texts = ["[Unknown]", "0x7fcff791c084", "[Max depth]", "/opt/tool/libcupti.so.12",
             "/usr/lib/libcuda.so.1", "/srv/app/train", *NAMES]
    texts += [f"level_{depth}(stack_{stack})" for stack in range(STACKS) for depth in range(DEPTH)]
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(texts))
    database.executemany("INSERT INTO PROCESSES VALUES (?, ?, 'train')", zip(packed, PIDS))

    def chain(number, stack, free):
        yield number, 1, 3, 1, 0, 0
        yield number, 1, 4, 1, 0, 1
        yield number, 7 if free else 6, 5, None, 0, 2
        for depth in range(3, DEPTH):
            yield number, 10 + stack * DEPTH + depth, 5, None, 0, depth

    memory, calls, chains = [], [], []

    def flush():
        marks = ",".join("?" * 18)
        database.executemany(f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES ({marks})", memory)
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?,?,?,?)", calls)
        database.executemany("INSERT INTO CUDA_CALLCHAINS VALUES (?,?,?,?,?,?)", chains)
        for rows in (memory, calls, chains):
            rows.clear()

    if not each_call:
        for stack in range(STACKS):
            chains.extend(chain(2 * stack, stack, 0))
            chains.extend(chain(2 * stack + 1, stack, 1))
    for number, (now, process, address, size, free, stack) in enumerate(events(count)):
        correlation = 100 + number
        memory.append((now, packed[process], 0, 1, address, 0, size, 2, free, None, correlation,
                       None, None, None, None, None, None, None))
        thread = packed[process] | PIDS[process]
        if each_call:
            named = number
            chains.extend(chain(number, stack, free))
        else:
            named = 2 * stack + free
        calls.append((now - 300, now + 100, 67, thread, correlation, 6 + free, 0, named))
        calls.append((now - 290, now + 90, 0, thread, correlation, 8 + free, 0, None))
        if len(memory) >= 50_000:
            flush()
    flush()
    database.commit()
    database.close()


def read_in_python(path, stacks):
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    calls, frames = {}, {}
    if stacks:
        texts = dict(database.execute("SELECT id, value FROM StringIds"))
        for number, symbol in database.execute(
                "SELECT id, symbol FROM CUDA_CALLCHAINS ORDER BY id, stackDepth"):
            frames.setdefault(number, []).append(symbol)
        frames = {number: " < ".join(texts[symbol] for symbol in chain)
                  for number, chain in frames.items()}
        for thread, correlation, named in database.execute(
                "SELECT globalTid, correlationId, callchainId FROM CUPTI_ACTIVITY_KIND_RUNTIME "
                "WHERE eventClass = 67"):
            calls[thread >> 24, correlation] = named
    live, total, peak, peak_at = {}, 0, 0, 0
    for start, process, address, size, kind, operation, correlation in database.execute(
            "SELECT start, globalPid, address, bytes, memKind, memoryOperationType, correlationId "
            "FROM CUDA_GPU_MEMORY_USAGE_EVENTS ORDER BY start"):
        key = (process, address, kind)
        if operation == 0:
            live[key] = (size, calls.get((process >> 24, correlation)))
            total += size
            if total > peak:
                peak, peak_at = total, start
        elif key in live:
            total -= live.pop(key)[0]
    sites = {}
    for size, named in live.values():
        site = frames.get(named, "")
        sites[site] = sites.get(site, 0) + size
    return {"live_bytes": total, "peak_bytes": peak, "peak_at": peak_at, "sites": sites}


def child(command):
    """Runs a command and returns its output, elapsed seconds, CPU seconds, and peak memory in MiB."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command[0]} failed")
    took = time.monotonic() - begin
    return json.loads(output), took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--file", default="target/bench/synthetic.sqlite")
    parser.add_argument("--chains", choices=["once", "each"], default="once",
                        help="write equal call chains once, or for each call")
    parser.add_argument("--reader", choices=["plain", "stacks"], help=argparse.SUPPRESS)
    parser.add_argument("--command", nargs="+", default=[
        "target/release/vramscope", "leaks", "--format", "json"])
    options = parser.parse_args()
    if options.reader:
        json.dump(read_in_python(options.file, options.reader == "stacks"), sys.stdout)
        return
    os.makedirs(os.path.dirname(options.file) or ".", exist_ok=True)
    if not os.path.exists(options.file):
        write(options.file, options.events, options.chains == "each")
    print(f"{os.path.getsize(options.file) / 1e6:.0f} MB")
    # Read the file once, so that all readers find it in the page cache.
    with open(options.file, "rb") as file:
        while file.read(1 << 24):
            pass
    # The best of three runs: other programs on the machine only make it slower.
    ours, seconds, cpu, memory = min((child([*options.command, options.file]) for _ in range(3)),
                                     key=lambda run: run[1])
    print(f"command  {seconds:8.2f} s           {cpu:8.2f} s CPU          {memory:8.0f} MiB")
    for reader in ("plain", "stacks"):
        command = [sys.executable, __file__, "--file", options.file, "--reader", reader]
        result, took, used, memory = child(command)
        print(f"{reader:8} {took:8.2f} s {took / seconds:6.1f} x  {used:8.2f} s CPU {used / cpu:6.1f} x {memory:8.0f} MiB")
        if ours["held_bytes"] != result["live_bytes"]:
            sys.exit(f"held_bytes: {ours['held_bytes']}, in Python {result['live_bytes']}")


if __name__ == "__main__":
    main()
