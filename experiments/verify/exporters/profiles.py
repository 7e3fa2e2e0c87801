#!/usr/bin/env python3
"""Reads the agent's profiles with Go's pprof, over HTTP and from saved files, and compares them with the API and the oracle.

usage: profiles.py --vramscope PATH --sim DIR [--go go]

Needs root and Go (Debian's golang-go).
"""
import argparse
import os
import pathlib
import re
import subprocess
import tempfile
import urllib.request

from hosts import Checks, Host

TYPES = ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]
SHOW_ALL = ["-nodefraction=0", "-edgefraction=0", "-nodecount=100000"]


class Pprof:
    """Runs `go tool pprof`."""

    def __init__(self, go, directory):
        self.go, self.environment = go, {**os.environ, "PPROF_TMPDIR": str(directory), "HOME": str(directory)}

    def run(self, *words):
        done = subprocess.run([self.go, "tool", "pprof", *words], env=self.environment, capture_output=True, text=True, check=True)
        return done.stdout

    def total(self, kind, source, *more):
        """Returns the total that `-top` prints, and the sum of its lines."""
        unit = ["-unit=B"] if kind.endswith("space") else []
        text = self.run("-top", f"-sample_index={kind}", *unit, *SHOW_ALL, *more, source)
        total = int(re.search(r"Showing nodes accounting for (-?\d+)", text)[1])
        rows = re.findall(r"^ *(-?\d+)B? +[-\d.]+%? +[-\d.]+% +-?\d+B? +[-\d.]+% ", text, re.MULTILINE)
        return total, sum(int(row) for row in rows)

    def names(self, source):
        """Returns the function names of `-traces`."""
        text = self.run("-traces", "-sample_index=alloc_space", source)
        return {line.strip() for line in text.splitlines()} | {line[12:].strip() for line in text.splitlines()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--sim", required=True)
    parser.add_argument("--go", default="go")
    options = parser.parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        pprof = Pprof(options.go, directory)
        print("     " + subprocess.run([options.go, "version"], capture_output=True, text=True, check=True).stdout.strip())
        first, last = str(directory / "first.pb.gz"), str(directory / "last.pb.gz")
        host = Host("node-1", directory, options.vramscope, options.sim, "")
        try:
            urllib.request.urlretrieve(host.url("/debug/pprof/heap"), first)
            pids = [host.start("train", "--steps", "40", "--step-ms", "2"), host.start("leak3")]
            seen = {pid: host.settle(pid) for pid in pids}
            url = host.url("/debug/pprof/heap")
            pulled = {pid: {kind: pprof.total(kind, url, f"-tagfocus=pid={pid}") for kind in TYPES} for pid in pids}
            urllib.request.urlretrieve(url, last)
            for pid in pids:
                api = seen[pid]
                expected = {"alloc_objects": api["allocations_total"], "inuse_objects": api["live_allocations"],
                           "alloc_space": sum(site["bytes_total"] for site in api["sites"]), "inuse_space": api["live_bytes"]}
                for kind in TYPES:
                    checks.equal(f"pulled, process {pid}, {kind}", pulled[pid][kind], (expected[kind],) * 2)
                    checks.equal(f"file, process {pid}, {kind}", pprof.total(kind, last, f"-tagfocus=pid={pid}"), (expected[kind],) * 2)
                    checks.equal(f"difference of last and first file, process {pid}, {kind}",
                                 pprof.total(kind, last, f"-tagfocus=pid={pid}", f"-diff_base={first}")[0], expected[kind])
            labels = pprof.run("-tags", last)
            shown = {key for key in ("gpu", "uuid", "pid", "process", "kind") if re.search(rf"^ *{key}: Total", labels, re.MULTILINE)}
            checks.equal("labels", sorted(shown), ["gpu", "kind", "pid", "process", "uuid"])
            whole = {frame["function"] for pid in pids for site in host.get(f"/api/v1/sites?pid={pid}")["sites"]
                     for frame in site["frames"] if frame.get("function")}
            names = pprof.names(last)
            # The longest names are truncated in every profile.
            truncated = tuple(name[:-1] for name in names if name.endswith("…"))
            changed = sorted(name for name in whole - names if not any(name.startswith(begin) for begin in truncated))
            checks.equal(f"{len(whole)} function names, changed ones", changed, [])
            for form in ("-tree", "-dot", "-peek=cuMemAlloc", "-traces", "-raw"):
                checks.equal(f"{form} has the driver's function", "cuMemAlloc_v2" in pprof.run(form, last), True)
            for pid, oracle in host.end_programs().items():
                checks.equal(f"oracle of process {pid}",
                             (seen[pid]["live_bytes"], seen[pid]["allocations_total"]), (oracle["live_bytes"], oracle["allocations"]))
        finally:
            host.agent.kill()
            for program in host.programs:
                program.kill()
    checks.end()


main()
