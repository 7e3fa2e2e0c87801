"""Compares what the tracer says of a process that ended with what the simulated driver wrote down."""
import json
import os

NUMBERS = [("live_bytes", "live_bytes"), ("allocations_total", "allocations"), ("frees_total", "frees"),
           ("released_total", "released"), ("failed_allocations", "failed_allocations")]


def entry(allocation, thread):
    # How much somebody else's memory is, and where, only the exporter knows.
    own = allocation["kind"] != "imported"
    return (allocation["address"], allocation["bytes"] if own else 0, allocation["device"] if own else None,
            allocation["kind"], thread)


def differences(process, oracle):
    """In words; none where the two agree."""
    found = []
    ours = sorted((entry(a, t["tid"]) for t in process["threads"] for a in t["allocations"]), key=repr)
    truth = sorted((entry(a, a["thread"]) for a in oracle["live"]), key=repr)
    if ours != truth:
        found.append(f"live: {len(ours)} allocations, truly {len(truth)}")
    for mine, theirs in NUMBERS:
        if process[mine] != oracle[theirs]:
            found.append(f"{mine} {process[mine]}, truly {oracle[theirs]}")
    bounds = process.get("peak_bounds", {"min_bytes": process["peak_bytes"], "max_bytes": process["peak_bytes"]})
    if not bounds["min_bytes"] <= oracle["peak_bytes"] <= bounds["max_bytes"]:
        found.append(f"peak {bounds}, truly {oracle['peak_bytes']}")
    if not process["exact"]:
        found.append("said not to be exact")
    return found


class Account:
    """Processes that ended, as both sides tell of them."""

    def __init__(self, ledger):
        self.ledger, self.ended, self.problems, self.before = ledger, {}, [], set()
        self.compared = self.late = self.untold = self.reports = 0
        self.lost = 0

    def report(self, line):
        """A line of the tracer."""
        report = json.loads(line)
        self.reports += 1
        self.lost = max(self.lost, report["lost_events"])
        for process in report["processes"]:
            if process["exited"] and process["end_reason"] == "exit":
                self.ended[process["pid"]] = process

    def compare(self, last=False):
        """What both have told of; at the last, also what only one has."""
        for name in os.listdir(self.ledger):
            if not name.endswith(".json"):
                continue
            pid, path = int(name[:-5]), os.path.join(self.ledger, name)
            process = self.ended.get(pid)
            if process is None and not last:
                continue
            with open(path) as file:
                oracle = json.load(file)
            os.unlink(path)
            if process is None and pid not in self.before and oracle["allocations"]:
                self.problems.append(f"process {pid} was never told to have ended")
            if process is None:
                self.late += 1
                continue
            del self.ended[pid]
            if process["before_trace"]:
                self.late += 1
                continue
            wrong = differences(process, oracle)
            self.compared += 1
            if wrong:
                self.problems.append(f"process {pid} ({process['name']}): {'; '.join(wrong)}")

    def begin(self):
        """Another tracer is attached: what ended before is nobody's business, and of processes that were there
        already it may have nothing to tell."""
        self.before = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self.ended.clear()
        for name in os.listdir(self.ledger):
            if name.endswith(".json"):
                os.unlink(os.path.join(self.ledger, name))
                self.untold += 1
