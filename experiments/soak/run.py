#!/usr/bin/env python3
"""Soak: a mixed load of processes that come, go and are killed, traced all along, for minutes or hours.

usage: run.py [--minutes 10 | --seconds S] [--seed N] [--results FILE] …

The first tracer runs for most of the time; then others come, of which each second one is killed with SIGKILL
in the middle of the load. Checked are:

- every process that ended by itself: the tracer's last word on it is the simulated driver's own account;
- programs survive: they end as they do without a tracer;
- the tracer's memory is flat over the second half of the longest run;
- entries of the kernel's tables end with their processes;
- after SIGKILL no program, map or link is left, and the driver's code in memory is as in its file.

Needs root, no GPU. Exits with 1 where anything of that is not so, and says what.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import leftovers  # noqa: E402
from load import Load  # noqa: E402
from truth import Account  # noqa: E402

from bench import bpf, results  # noqa: E402
from bench.place import Place, options  # noqa: E402
from bench.processes import Lines, Usage, anonymous, end_well, start, stop  # noqa: E402

# More than that in the second half of the longest run is a leak: figures of processes that ended
# are kept for the last report, of so many at most.
FLAT_MB, STEP_MB, FLAT_KB_PER_PROCESS, KEPT = 3.0, 16.0, 24, 4096


class Tracer:
    def __init__(self, place, account):
        self.process = start([place.vramscope, "trace", "--json", "--interval", "250ms", "--kernels",
                              *place.driver_option(), "-a"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.reports = Lines(self.process.stdout, account.report)
        self.messages = Lines(self.process.stderr)
        self.messages.wait_for(lambda line: "attached to" in line, 60, "the tracer's probes")
        account.begin()
        self.usage, self.memory = Usage(self.process.pid), []

    def end(self, number):
        code = stop(self.process, number, 120)
        self.reports.finish()
        return code


class Soak:
    def __init__(self, place, folder, chosen):
        self.place, self.problems, self.restarts, self.kills = place, [], 0, 0
        self.account, self.load = Account(folder), Load(place, folder, chosen.seed)
        self.clean = leftovers.code(place.driver_file)
        self.entries = 0

    def phase(self, tracer, seconds):
        """The load, for a while; the tracer's memory over time."""
        until, due = time.monotonic() + seconds, 0.0
        while time.monotonic() < until:
            self.load.look()
            self.account.compare()
            if tracer.process.poll() is not None:
                raise RuntimeError(f"the tracer ended with {tracer.process.returncode}: {tracer.messages.text()[-800:]}")
            if time.monotonic() >= due:
                due = time.monotonic() + 0.5
                ended = self.account.compared + self.load.killed
                tracer.memory.append((time.monotonic(), anonymous(tracer.process.pid), ended))
            time.sleep(0.02)

    def settle(self, tracer):
        """All targets gone: nothing of them may be left in the kernel's tables."""
        self.load.drain()
        until, stale = time.monotonic() + 15, {}
        while True:
            stale, unknown, self.entries = leftovers.entries(tracer.process.pid)
            if not stale or time.monotonic() > until:
                break
            time.sleep(0.25)
        if stale:
            self.problems.append(f"entries of processes that are gone: {stale}")
        if unknown:
            self.problems.append(f"maps that leftovers.py does not know: {unknown}")

    def long_run(self, seconds):
        tracer = Tracer(self.place, self.account)
        if leftovers.code(self.place.driver_file) == self.clean:
            self.problems.append("the probes do not show in the driver's code: what is checked after SIGKILL means nothing")
        self.phase(tracer, seconds)
        used = tracer.usage.so_far()
        self.settle(tracer)
        self.finish(tracer, signal.SIGINT)
        return {"cpu_percent": used["cpu_s"] / used["seconds"] * 100, **self.slope(tracer.memory),
                "series": [[round(at - tracer.memory[0][0], 1), round(used / 1e6, 2)] for at, used, _ in tracer.memory]}

    def finish(self, tracer, number):
        """A good end: every process that ended was told."""
        code = tracer.end(number)
        if code != 0:
            self.problems.append(f"the tracer ended with {code}: {tracer.messages.text()[-400:]}")
        self.account.compare(last=True)

    def killed_run(self, seconds):
        tracer = Tracer(self.place, self.account)
        self.phase(tracer, seconds)
        objects = bpf.owned(tracer.process.pid)
        if not objects["map"] or not (objects["link"] or objects["prog"]):
            self.problems.append(f"the tracer shows no BPF objects: {objects}")
        tracer.end(signal.SIGKILL)
        self.kills += 1
        left = leftovers.remaining(objects)
        if left:
            self.problems.append(f"left after SIGKILL: {', '.join(left[:8])}")
        if leftovers.stays_changed(self.place.driver_file, self.clean):
            self.problems.append("the driver's code is still changed after SIGKILL")

    def short_run(self, seconds):
        """A tracer that comes into a load that runs."""
        tracer = Tracer(self.place, self.account)
        self.phase(tracer, seconds)
        self.settle(tracer)
        self.finish(tracer, signal.SIGTERM)

    def slope(self, memory):
        """Growth over the second half, by least squares."""
        half = memory[len(memory) // 2:]
        times = [at for at, _, _ in half]
        middle, mean = sum(times) / len(times), sum(used for _, used, _ in half) / len(half)
        spread = sum((at - middle) ** 2 for at in times) or 1
        slope = sum((at - middle) * (used - mean) for at, used, _ in half) / spread
        span, ended = times[-1] - times[0], half[-1][2] - half[0][2]
        grown, kept = slope * span, min(half[-1][2], KEPT) - min(half[0][2], KEPT)
        # A table that doubles, or the names of one big program, are steps that a short time cannot tell from a leak.
        flat = FLAT_MB if span >= 60 else STEP_MB
        if grown > flat * 1e6 + kept * FLAT_KB_PER_PROCESS * 1e3:
            self.problems.append(f"the tracer's memory grew by {grown / 1e6:.1f} MB in {span:.0f} s, with {ended} processes")
        return {"grown_mb": grown / 1e6, "span_s": span, "ended": ended, "memory_mb": memory[-1][1] / 1e6}


def main():
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, help="instead of minutes")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    seconds = chosen.seconds or chosen.minutes * 60
    end_well()
    place = Place(chosen)
    if not place.simulated:
        raise SystemExit("the soak needs the simulated driver: it writes down the truth")
    with tempfile.TemporaryDirectory() as folder:
        soak, began = Soak(place, folder, chosen), time.monotonic()
        long = soak.long_run(seconds * 0.6)
        # In hours, more restarts; each takes a second by itself.
        turns = max(1, int(seconds * 0.3 / 60))
        for _ in range(turns):
            soak.killed_run(seconds * 0.1 / turns)
            soak.short_run(seconds * 0.15 / turns)
            soak.restarts += 2
    account, load = soak.account, soak.load
    problems = soak.problems + account.problems + load.problems
    if account.lost:
        problems.append(f"{account.lost} events were lost")
    if not account.compared:
        problems.append("no process was compared with the truth")
    print(f"{time.monotonic() - began:.0f} s: {load.started} programs, {load.killed} of them killed; {account.compared} processes "
          f"compared with the truth, {account.late} had begun before the tracer, {account.untold} ended without one; "
          f"{soak.restarts} restarts, {soak.kills} of them after SIGKILL; {account.reports} reports, {account.lost} events lost")
    print(f"tracer: {long['cpu_percent']:.1f} % of a core, {long['memory_mb']:.1f} MB of its own, {long['grown_mb']:+.2f} MB over the "
          f"last {long['span_s']:.0f} s ({long['ended']} processes ended); {soak.entries} entries left in the kernel's tables")
    for problem in problems[:40]:
        print(f"WRONG: {problem}")
    if chosen.results:
        figures = {"seconds": seconds, "programs": load.started, "killed": load.killed, "compared": account.compared,
                   "late": account.late, "restarts": soak.restarts, "sigkills": soak.kills, "reports": account.reports,
                   "lost": account.lost, "entries_left": soak.entries, "problems": problems, "long": long}
        results.keep(chosen.results, chosen.machine, "soak", figures, {**results.facts(place.vramscope), "driver": "simulated"})
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
