#!/usr/bin/env python3
"""Writes NAME.json next to each NAME.sqlite and NAME.sql with the expected result of an import.

usage: expected.py

Simple and slow, and independent: no code is shared with the importer. An .sql file has the
statements that create a database. Check the results before you commit them.
"""
import glob
import json
import os
import sqlite3

BUILT_IN = {0: "PAGEABLE", 1: "PINNED", 2: "DEVICE", 3: "ARRAY", 4: "MANAGED", 5: "DEVICE_STATIC",
            6: "MANAGED_STATIC", 7: "UNKNOWN"}
WORDS = {"PAGEABLE": "pageable", "PINNED": "pinned", "DEVICE": "device", "ARRAY": "array",
         "MANAGED": "managed", "DEVICE_STATIC": "static", "MANAGED_STATIC": "managed_static"}
ON_DEVICE = {"device", "array", "graph", "static", "async"}


def rows(database, table):
    """Returns rows as dicts, with their rowid; none if the table does not exist."""
    try:
        cursor = database.execute(f"SELECT rowid AS number, * FROM {table}")
    except sqlite3.OperationalError:
        return []
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row)) for row in cursor]


def strings(database):
    return {row["id"]: row["value"].split(b"\0")[0].decode("utf-8", "replace")
            for row in rows(database, "StringIds")}


def stacks(database):
    """Returns (pid, correlation id) -> (thread, frames), innermost first."""
    text = strings(database)
    chains = {}
    for row in rows(database, "CUDA_CALLCHAINS"):
        chains.setdefault(row["id"], []).append(row)
    calls = rows(database, "CUPTI_ACTIVITY_KIND_RUNTIME")
    traced = [row for row in calls if row["eventClass"] == 67 and row["callchainId"] is not None]

    def symbols(number):
        return [text[frame["symbol"]] for frame in chains.get(number, [])]

    def agreeing(shift):
        return sum(text[row["nameId"]] in symbols(row["callchainId"] + shift) for row in traced)

    shift = 1 if traced and agreeing(1) > agreeing(0) else 0
    found = {}
    for row in sorted(calls, key=lambda row: row["eventClass"] == 67):
        key = (row["globalTid"] >> 24, row["correlationId"])
        thread = row["globalTid"] & 0xFFFFFF
        if row["eventClass"] != 67:
            name = text[row["nameId"]]
            head, _, version = name.rpartition("_v")
            found[key] = (thread, ["= " + (head if len(version) > 3 and version.isdigit() else name)])
            continue
        frames = []
        for frame in sorted(chains.get(row["callchainId"] + shift, []), key=lambda f: f["stackDepth"]):
            symbol, module = text[frame["symbol"]], text[frame["module"]]
            unnamed = frame["unresolved"] or symbol.startswith("0x")
            if frames or not (unnamed or "libcupti" in module):
                frames.append("? " + module if unnamed else symbol)
        if frames:
            found[key] = (thread, frames)
    return found


def answer(database):
    kinds = {number: "CUDA_MEMOPR_MEMORY_KIND_" + name for number, name in BUILT_IN.items()}
    for row in rows(database, "ENUM_CUDA_MEM_KIND"):
        kinds[row["id"]] = row["name"].decode()
    calls = stacks(database)
    events = rows(database, "CUDA_GPU_MEMORY_USAGE_EVENTS")
    usable = [row for row in events
              if all(isinstance(row[column], int) for column in ("start", "bytes", "address"))
              and row["bytes"] >= 0 and row["memoryOperationType"] in (0, 1)]
    zero = min([0] + [row["start"] for row in events if isinstance(row["start"], int)])
    live, began, total, peak, peak_at = [], 0, 0, 0, 0
    unmatched = replaced = 0

    def word(row):
        return WORDS.get(kinds.get(row["memKind"], "").replace("CUDA_MEMOPR_MEMORY_KIND_", ""), "unknown")

    variables = [row for row in usable if word(row) == "managed_static"]
    for row in sorted(usable, key=lambda row: (row["start"], row["number"])):
        kind, process = word(row), row["globalPid"] >> 24
        family = "managed" if kind == "managed_static" else kind
        name = row["name"].decode() if row["name"] else None
        if kind == "managed":
            for other in variables:
                if (other["globalPid"], other["address"], other["bytes"]) == (
                        row["globalPid"], row["address"], row["bytes"]) and other["start"] >= row["start"]:
                    kind, name = "managed_static", other["name"].decode()
        if kind == "device":
            if row["address"] == 0:
                kind = family = "graph"
            elif row.get("localMemoryPoolAddress") is not None:
                kind = "async"
        same = [entry for entry in live if entry["key"] == (process, family, row["address"])]
        if family == "graph":
            same = [entry for entry in same if entry["bytes"] == row["bytes"]]
        if row["memoryOperationType"] == 1:
            if not same:
                unmatched += 1
                continue
            live.remove(same[0])
            total -= same[0]["bytes"] if same[0]["kind"] in ON_DEVICE else 0
            continue
        if same and family != "graph":
            if kind == "managed_static" and same[0]["bytes"] == row["bytes"]:
                continue
            live.remove(same[0])
            total -= same[0]["bytes"] if same[0]["kind"] in ON_DEVICE else 0
            replaced += 1
        thread, frames = calls.get((process, row["correlationId"]), (0, []))
        if name:
            frames = ["= " + name]
        device = row["deviceId"] if row["deviceId"] < 65536 and kind not in ("pinned", "pageable") else None
        live.append({"key": (process, family, row["address"]), "kind": kind, "bytes": row["bytes"],
                     "pid": process & 0xFFFFFF, "tid": thread, "device": device, "frames": frames,
                     "began": row["start"] - zero})
        began += 1
        total += row["bytes"] if kind in ON_DEVICE else 0
        if total > peak:
            peak, peak_at = total, row["start"] - zero
    by_kind = {}
    for entry in live:
        del entry["key"]
        by_kind[entry["kind"]] = by_kind.get(entry["kind"], 0) + entry["bytes"]
    return {"began": began, "peak_bytes": peak, "peak_at": peak_at, "unmatched": unmatched,
            "replaced": replaced, "live_by_kind": by_kind,
            "live": sorted(live, key=lambda entry: (entry["began"], entry["bytes"]))}


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    for path in sorted(glob.glob("*.sqlite") + glob.glob("*.sql")):
        if path.endswith(".sql"):
            database = sqlite3.connect(":memory:")
            with open(path) as file:
                database.executescript(file.read())
        else:
            database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        database.text_factory = bytes
        with open(os.path.splitext(path)[0] + ".json", "w") as file:
            json.dump(answer(database), file, indent=1, sort_keys=True)
            file.write("\n")


if __name__ == "__main__":
    main()
