#!/usr/bin/env python3
"""Checks the views of contrib/fleet on small tables whose answers are known: wrong clocks, files that are missing or
uploaded twice, restarted agents, reused pids, and versions of the schema.

usage: cases.py DIR [ENGINE...]

Writes DIR/lake, reads it with each engine [default: duckdb] and compares the answers with those below. Needs pyarrow and the
engines.
"""
import datetime
import json
import pathlib
import subprocess
import sys

import pyarrow
import pyarrow.parquet

HERE = pathlib.Path(__file__).resolve().parent
GIB = 1 << 30
HOUR = 3600
DAY = 86400
NOON = int(datetime.datetime(2026, 3, 2, 12, tzinfo=datetime.timezone.utc).timestamp())

TIME, WORD = pyarrow.timestamp("us", tz="UTC"), pyarrow.string()
COUNT, SMALL = pyarrow.uint64(), pyarrow.uint16()
SAMPLE = {"time": TIME, "schema_version": SMALL, "agent_start": TIME, "covers_seconds": pyarrow.float64()}
PROCESS = {"pid": pyarrow.uint32(), "process_start_ns": COUNT, "program": WORD, "release": WORD, "job": WORD, "pod": WORD,
           "namespace": WORD}
SITE = {"site": WORD, "fingerprint": WORD, "location": WORD}
TABLES = {
    "gpus": {**SAMPLE, "gpu": SMALL, "uuid": WORD, "name": WORD, "total_bytes": COUNT, "used_bytes": COUNT,
             "growth_bytes_per_hour": pyarrow.int64(), "seconds_until_full": COUNT, "processes": COUNT},
    "processes": {**SAMPLE, **PROCESS, "live_bytes": COUNT, "used_bytes": COUNT, "pool_unused_bytes": COUNT, "cache_bytes": COUNT,
                  "cache_used_bytes": COUNT, "launches_total": COUNT},
    "devices": {**SAMPLE, **PROCESS, "live_bytes": COUNT},
    "sites": {**SAMPLE, **PROCESS, **SITE, "peak_bytes": COUNT},
    "suspects": {**SAMPLE, **PROCESS, **SITE, "gpu": SMALL, "resource": WORD, "kind": WORD, "live": COUNT,
                 "growth_per_hour": COUNT, "seconds_until_full": COUNT},
    "peaks": {**SAMPLE, **PROCESS, "peak_bytes": COUNT},
    "incidents": {**SAMPLE, "incident": WORD, "incident_time": TIME, "trigger": WORD, "cause": WORD, "recovered": pyarrow.bool_(),
                  "errors": COUNT, "program": WORD},
}


class Lake:
    """Tables in the layout of the agents."""

    def __init__(self, directory):
        self.directory, self.files = directory, 0

    def add(self, table, host, *rows, without=(), more=None):
        """Writes a file with rows. `without` and `more` are columns that this version does not have, or has in addition."""
        columns = {name: kind for name, kind in TABLES[table].items() if name not in without}
        date = datetime.datetime.fromtimestamp(rows[0]["time"], datetime.timezone.utc).date()
        filled = [{"schema_version": 2, "agent_start": 0, "covers_seconds": 0.0, **row} for row in rows]
        arrays = {}
        for name, kind in columns.items():
            values = [row.get(name) for row in filled]
            if kind == TIME:
                values = [None if value is None else round(value * 1_000_000) for value in values]
            arrays[name] = pyarrow.array(values, kind)
        arrays.update({name: pyarrow.array([value] * len(rows)) for name, value in (more or {}).items()})
        self.files += 1
        path = self.directory / table / f"host={host}" / f"date={date}" / f"part-120000-{self.files}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table(arrays), path)
        return path


def process(pid=7, start=1, program="train.py", **more):
    return {"pid": pid, "process_start_ns": start, "program": program, **more}


def durations(lake):
    """Three samples of a host with a correct clock, of one whose clock steps back, and of one with a missing hour."""
    for host, times in (("clock-right", (0, 60, 120)), ("clock-steps", (0, 60, -3480)), ("clock-future", (9 * DAY, 9 * DAY + 60, 9 * DAY + 120))):
        for number, at in enumerate(times):
            covers = 60.0 if number else 0.0
            lake.add("processes", host, {"time": NOON + at, "covers_seconds": covers, "used_bytes": 4 * GIB, "live_bytes": 3 * GIB,
                                         **process(program=host)})
            lake.add("gpus", host, {"time": NOON + at, "covers_seconds": covers, "gpu": 0, "total_bytes": 9 * GIB})
    # An agent of 12:00 to 14:00 whose file of 12:30 to 13:30 did not arrive, and its successor.
    for at, covers, agent in ((0, 0.0, 1), (1800, 1800.0, 1), (7200, 1800.0, 1), (9000, 0.0, 2), (10800, 1800.0, 2)):
        row = {"time": NOON + at, "covers_seconds": covers, "agent_start": agent}
        lake.add("processes", "missing-hour", {**row, "used_bytes": 2 * GIB, "live_bytes": GIB, **process(program="missing-hour")})
        lake.add("gpus", "missing-hour", {**row, "gpu": 0, "total_bytes": 9 * GIB})


def pids(lake):
    """One pid of two processes of a host, and of another host; a leak whose last state counts."""
    site = {"site": "s1", "fingerprint": "f1", "location": "step train.py:12", "resource": "device_memory", "kind": "device", "gpu": 0}
    for host, start, times in (("pids-a", 1, (0, 60)), ("pids-a", 2, (120,)), ("pids-b", 1, (0,))):
        for at in times:
            lake.add("suspects", host, {"time": NOON + at, **process(start=start), **site, "live": 100 + at, "growth_per_hour": 10,
                                        "seconds_until_full": {("pids-a", 0): 5, ("pids-b", 0): 50}.get((host, at))})
    lake.add("suspects", "pids-b", {"time": NOON, **process(pid=8, program="full.py"), **site, "live": 1, "growth_per_hour": 1,
                                    "seconds_until_full": 0})
    # Another release has the line somewhere else, with the same fingerprint; another version of the schema has none.
    lake.add("suspects", "pids-c", {"time": NOON, **process(), **site, "site": "s2", "location": "step train.py:14", "live": 5, "growth_per_hour": 1})
    lake.add("suspects", "pids-d", {"time": NOON, **process(), **site, "site": "f1", "live": 7, "growth_per_hour": 1}, without=("fingerprint",))


def releases(lake):
    """Release 2 follows release 1 on three hosts; the clock of one of them is 30 days behind."""
    for host in ("release-a", "release-b", "release-c"):
        late = 30 * DAY if host == "release-c" else 0
        for release, at, peak in (("1", 0, 100), ("2", DAY, 160)):
            row = {"time": NOON + at - late, **process(pid=int(release), program="job.py", release=release, job="slurm 1"), "peak_bytes": peak}
            lake.add("peaks", host, row)
            # An earlier, lower peak of the same process.
            lake.add("peaks", host, {**row, "time": row["time"] - 60, "peak_bytes": peak - 10})
            lake.add("sites", host, {**row, "site": f"s{release}", "fingerprint": "f", "location": f"step job.py:{release}"})


def waste(lake):
    """A pod that launches, one that does not, and one whose launches are not counted."""
    for pid, (pod, launches) in enumerate((("busy", (1, 5)), ("idle", (5, 5)), ("uncounted", (None, None)))):
        for number, count in enumerate(launches):
            lake.add("processes", "waste", {
                "time": NOON + number * HOUR, "covers_seconds": float(number * HOUR), "live_bytes": 2 * GIB, "pool_unused_bytes": GIB,
                "cache_bytes": 2 * GIB, "cache_used_bytes": GIB, "launches_total": count,
                **process(pid=pid, program="waste", pod=pod, namespace="team")})


def versions(lake):
    """Tables of an older version without columns, and of a newer one with another column."""
    row = {"time": NOON, "covers_seconds": 60.0, "live_bytes": GIB, **process(program="new")}
    lake.add("processes", "version-3", {**row, "schema_version": 3}, more={"temperature": 41})
    lake.add("processes", "version-1", row, without=("schema_version", "agent_start", "covers_seconds", "program", "release", "job", "used_bytes"))


def incidents(lake):
    """Two states of one incident, and the same name on another host."""
    row = {"time": NOON, "incident": "i", "incident_time": NOON, "trigger": "out_of_memory", "cause": "leak", "recovered": False, "errors": 1}
    lake.add("incidents", "incident-a", row)
    lake.add("incidents", "incident-a", {**row, "time": NOON + 60, "recovered": True, "errors": 3})
    lake.add("incidents", "incident-b", row)
    lake.add("devices", "incident-a", {"time": NOON, **process(), "live_bytes": 1})


def upload_again(lake):
    """Copies every file under another name."""
    for path in list(lake.directory.rglob("part-*.parquet")):
        path.with_name(path.name.replace("part-", "part-again-")).write_bytes(path.read_bytes())


def rows(views, view, columns, **selected):
    """Returns some columns of the rows that have some values, in order."""
    found = [row for row in views[view] if all(row[name] == value for name, value in selected.items())]
    return sorted(tuple(row[name] for name in columns) for row in found)


def checks(views):
    """Yields each check: what it says, the answer and the expected one."""
    cost = ("gib_hours", "process_hours", "processes")
    expected = [(4 * 120 / HOUR, 120 / HOUR, 1)]
    yield "a correct clock", rows(views, "cost_by_program", cost, program="clock-right"), expected
    yield "a clock that steps back loses and adds nothing", rows(views, "cost_by_program", cost, program="clock-steps"), expected
    yield "a clock in the future", rows(views, "cost_by_program", cost, program="clock-future"), expected
    yield "a missing hour adds nothing", rows(views, "cost_by_program", cost, program="missing-hour"), [(2 * 1.5, 1.5, 1)]
    yield ("coverage shows the hour and the restart",
           rows(views, "coverage_by_host", ("covered_hours", "agent_starts", "samples"), host="missing-hour"), [(1.5, 2, 5)])
    yield ("reused pids, hosts, moved lines and old versions of one leak",
           rows(views, "leaks_by_site", ("fingerprint", "hosts", "processes", "live", "growth_per_hour"), program="train.py"),
           [("f1", 4, 5, 160 + 220 + 100 + 5 + 7, 32)])
    yield ("time until full of the last state, which may have none, or 0",
           rows(views, "leaks_by_site", ("program", "seconds_until_full")), [("full.py", 0), ("train.py", 50)])
    yield ("releases in their order, in spite of a wrong clock",
           rows(views, "growth_by_release", ("release", "processes", "mean_peak_bytes", "growth_bytes"), program="job.py"),
           [("1", 3, 100, None), ("2", 3, 160, 60)])
    yield ("the line that grew", rows(views, "site_growth_by_release", ("release", "fingerprint", "growth_bytes"), program="job.py"),
           [("1", "f", None), ("2", "f", 60)])
    yield ("a job of six processes on three hosts",
           rows(views, "peak_by_job", ("hosts", "processes", "sum_of_peaks_bytes", "max_process_peak_bytes"), job="slurm 1"), [(3, 6, 780, 160)])
    yield ("waste of pods", rows(views, "waste_by_pod", ("pod", "held_gib_hours", "unused_gib_hours", "idle_gib_hours"), namespace="team"),
           [("busy", 3, 2, 0), ("idle", 3, 2, 3), ("uncounted", 3, 2, None)])
    yield "a newer version", rows(views, "cost_by_program", ("gib_hours",), program="new"), [(1 / 60,)]
    yield ("the last state of each incident",
           rows(views, "incidents_by_cause", ("incidents", "recovered_incidents", "total_errors", "hosts")), [(2, 1, 4, 2)])


def read(engine, lake):
    done = subprocess.run([sys.executable, "-B", HERE / "engines.py", engine, lake.directory, "--views"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{engine}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])["views"]


def main():
    lake = Lake(pathlib.Path(sys.argv[1]).resolve() / "lake")
    for case in (durations, pids, releases, waste, versions, incidents):
        case(lake)
    wrong = 0
    for upload in ("once", "twice"):
        for engine in sys.argv[2:] or ["duckdb"]:
            for what, found, expected in checks(read(engine, lake)):
                close = json.dumps(found, default=float) == json.dumps(expected) or (
                    len(found) == len(expected) and all(
                        a == b or (None not in (a, b) and not isinstance(a, str) and abs(a - b) < 1e-3)
                        for ours, theirs in zip(found, expected) for a, b in zip(ours, theirs)))
                wrong += not close
                print(f"{'ok   ' if close else 'WRONG'} {engine}, uploaded {upload}: {what}" + ("" if close else f": {found}, expected {expected}"))
        upload_again(lake)
    sys.exit(1 if wrong else 0)


main()
