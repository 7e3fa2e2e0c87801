"""Compares reports with the oracle: the account that the simulated driver writes for each process."""
import json
import os
import time

# Fields of a process in a report, and of the oracle.
TOTALS = [("live_bytes", "live_bytes"), ("allocations_total", "allocations"), ("frees_total", "frees"),
          ("released_total", "released"), ("failed_allocations", "failed_allocations")]


def allocation_key(allocation, thread):
    """Returns what must be equal of an allocation.

    Only its exporter knows size and device of imported memory, and several threads can open it at the same time.
    """
    if allocation["kind"] == "imported":
        return (allocation["address"], 0, None, "imported", None)
    return (allocation["address"], allocation["bytes"], allocation["device"], allocation["kind"], thread)


def listed_allocations(process):
    """Returns the keys of the allocations that a report lists, sorted."""
    return sorted((allocation_key(a, t["tid"]) for t in process["threads"] for a in t["allocations"]), key=repr)


def live_allocations(oracle):
    """Returns the keys of the allocations that are live for the oracle, sorted."""
    return sorted((allocation_key(a, a["thread"]) for a in oracle["live"]), key=repr)


def peak_bounds(process):
    """Returns the bounds of the peak: overlapping calls of several threads leave their order open."""
    bounds = process.get("peak_bounds", {"min_bytes": process["peak_bytes"], "max_bytes": process["peak_bytes"]})
    return bounds["min_bytes"], bounds["max_bytes"]


def differences(process, oracle):
    """Returns the differences between a process of an exact report and its oracle, as text."""
    found = []
    reported, expected = listed_allocations(process), live_allocations(oracle)
    if reported != expected:
        different = [next((one for one in mine if one not in others), None) for mine, others in ((reported, expected), (expected, reported))]
        found.append(f"live: {len(reported)} allocations, oracle {len(expected)}; {different[0]} is not {different[1]}")
    for field, of_oracle in TOTALS:
        if process[field] != oracle[of_oracle]:
            found.append(f"{field} {process[field]}, oracle {oracle[of_oracle]}")
    low, high = peak_bounds(process)
    if not low <= oracle["peak_bytes"] <= high:
        found.append(f"peak {low}..{high}, oracle {oracle['peak_bytes']}")
    if not process["exact"]:
        found.append("not reported as exact")
    return found


class ExitedProcesses:
    """Compares every process that exits under a trace with its oracle."""

    def __init__(self, oracle_dir):
        # Processes that were reported as exited, by pid, with the time of the report.
        self.oracle_dir, self.exited, self.problems, self.preexisting = oracle_dir, {}, [], set()
        self.compared = self.late = self.untraced = self.reports = 0
        self.lost = self.site_rows = 0

    def add_report(self, line):
        """Reads a report of the tracer."""
        report = json.loads(line)
        self.reports += 1
        self.lost = max(self.lost, report["lost_events"])
        for process in report["processes"]:
            if process["exited"]:
                self.site_rows += process["sites_total"]
                if process["end_reason"] == "exit":
                    self.exited.setdefault(process["pid"], []).append((time.time(), process))

    def compare(self, last=False):
        """Compares processes that are in a report and have an oracle; at the end also those with an oracle only."""
        for name in os.listdir(self.oracle_dir):
            if not name.endswith(".json"):
                continue
            pid, path = int(name[:-5]), os.path.join(self.oracle_dir, name)
            # Pids are reused: a process that was reported before this oracle was written is another one.
            written = os.path.getmtime(path)
            found = [process for seen, process in self.exited.get(pid, ()) if seen >= written]
            if not found and not last:
                continue
            with open(path) as file:
                oracle = json.load(file)
            os.unlink(path)
            self.compare_process(pid, found, oracle)

    def compare_process(self, pid, found, oracle):
        """Compares an oracle with the processes that had its pid; that with the fewest differences is the same."""
        if not found:
            self.late += 1
            if pid not in self.preexisting and oracle["allocations"]:
                self.problems.append(f"process {pid} was never reported as exited")
            return
        del self.exited[pid]
        if all(process["before_trace"] for process in found):
            self.late += 1
            return
        wrong = min((differences(process, oracle) for process in found), key=len)
        self.compared += 1
        if wrong:
            self.problems.append(f"process {pid} ({found[0]['name']}): {'; '.join(wrong)}")

    def tracer_attached(self):
        """Starts over for a new tracer.

        It knows nothing of processes that exited before, and may know nothing of those that run already.
        """
        self.preexisting = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self.exited.clear()
        for name in os.listdir(self.oracle_dir):
            if name.endswith(".json"):
                os.unlink(os.path.join(self.oracle_dir, name))
                self.untraced += 1
