#!/usr/bin/env python3
"""Traces a mixed load of processes that start, exit and are killed, for minutes or hours.

usage: run.py [--minutes 10 | --seconds S] [--seed N] [--results FILE] …

The first tracer runs for most of the time. Others follow; every second one is killed with SIGKILL under load.
Checks that:

- the last report of every process that exits normally equals the oracle of the simulated driver;
- programs exit as they do without a tracer;
- the tracer's memory is flat over the second half of the longest run;
- map entries are removed when their processes exit;
- after SIGKILL no BPF program, map or link is left, and the driver's code in memory equals its file.

Needs root, no GPU. Exits with 1 and prints the problems if a check fails.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(os.path.dirname(HERE)))

from lib import bpf, leftovers, machine, results  # noqa: E402
from lib.oracle import ExitedProcesses  # noqa: E402
from lib.paths import Setup, argument_parser  # noqa: E402
from lib.processes import (Lines, Usage, kill_children_at_exit, private_bytes, start, stop,  # noqa: E402
                           wait_attached)
from load import Load  # noqa: E402

# More growth in the second half of the longest run is a leak. The tracer keeps the totals of exited processes for its
# last report, of KEPT_PROCESSES at most.
FLAT_MB, STEP_MB, FLAT_KB_PER_PROCESS, KEPT_PROCESSES = 3.0, 16.0, 24, 4096


class Tracer:
    """A tracer of all processes, whose reports are compared with the oracle."""

    def __init__(self, setup, account):
        self.process = start([setup.vramscope, "trace", "--json", "--interval", "250ms", "--kernels",
                              *setup.driver_option(), "-a"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.reports = Lines(self.process.stdout, account.add_report)
        self.messages = Lines(self.process.stderr)
        wait_attached(self.messages)
        account.tracer_attached()
        self.usage, self.memory = Usage(self.process.pid), []

    def end(self, number):
        code = stop(self.process, number, 120)
        self.reports.finish()
        return code


class Soak:
    def __init__(self, setup, directory, options):
        self.setup, self.problems, self.restarts, self.kills = setup, [], 0, 0
        self.account, self.load = ExitedProcesses(directory), Load(setup, directory, options.seed)
        self.clean = leftovers.code(setup.driver_file)
        self.entries = 0

    def phase(self, tracer, seconds):
        """Runs the load and samples the tracer's memory."""
        until, due = time.monotonic() + seconds, 0.0
        while time.monotonic() < until:
            self.load.poll()
            self.account.compare()
            if tracer.process.poll() is not None:
                raise RuntimeError(f"the tracer ended with {tracer.process.returncode}: {tracer.messages.text()[-800:]}")
            if time.monotonic() >= due:
                due = time.monotonic() + 0.5
                ended = self.account.compared + self.load.killed
                tracer.memory.append((time.monotonic(), private_bytes(tracer.process.pid), ended))
            time.sleep(0.02)

    def check_entries(self, tracer):
        """Waits until all targets have exited, and checks that the maps have no entries of them."""
        self.load.drain()
        until, stale = time.monotonic() + 15, {}
        while True:
            stale, unknown, self.entries = leftovers.entries(tracer.process.pid)
            if not stale or time.monotonic() > until:
                break
            time.sleep(0.25)
        if stale:
            self.problems.append(f"map entries of exited processes: {stale}")
        if unknown:
            self.problems.append(f"maps that lib/leftovers.py does not list: {unknown}")

    def long_run(self, seconds):
        tracer = Tracer(self.setup, self.account)
        if leftovers.code(self.setup.driver_file) == self.clean:
            self.problems.append("the probes do not change the driver's code: the check after SIGKILL is void")
        self.phase(tracer, seconds)
        used = tracer.usage.so_far()
        self.check_entries(tracer)
        self.finish(tracer, signal.SIGINT)
        return {"cpu_percent": used["cpu_s"] / used["seconds"] * 100, **self.slope(tracer.memory),
                "series": [[round(at - tracer.memory[0][0], 1), round(used / 1e6, 2)] for at, used, _ in tracer.memory]}

    def finish(self, tracer, number):
        """Ends the tracer cleanly and compares all processes that exited."""
        code = tracer.end(number)
        if code != 0:
            self.problems.append(f"the tracer ended with {code}: {tracer.messages.text()[-400:]}")
        self.account.compare(last=True)

    def killed_run(self, seconds):
        tracer = Tracer(self.setup, self.account)
        self.phase(tracer, seconds)
        objects = bpf.owned(tracer.process.pid)
        if not objects["map"] or not (objects["link"] or objects["prog"]):
            self.problems.append(f"the tracer shows no BPF objects: {objects}")
        tracer.end(signal.SIGKILL)
        self.kills += 1
        left = leftovers.remaining(objects)
        if left:
            self.problems.append(f"left after SIGKILL: {', '.join(left[:8])}")
        if leftovers.code_stays_changed(self.setup.driver_file, self.clean):
            self.problems.append("the driver's code is still changed after SIGKILL")

    def short_run(self, seconds):
        """Runs a tracer that is attached while the load runs."""
        tracer = Tracer(self.setup, self.account)
        self.phase(tracer, seconds)
        self.check_entries(tracer)
        self.finish(tracer, signal.SIGTERM)

    def slope(self, memory):
        """Returns the memory growth over the second half, by least squares."""
        half = memory[len(memory) // 2:]
        times = [at for at, _, _ in half]
        middle, mean = sum(times) / len(times), sum(used for _, used, _ in half) / len(half)
        spread = sum((at - middle) ** 2 for at in times) or 1
        slope = sum((at - middle) * (used - mean) for at, used, _ in half) / spread
        span, ended = times[-1] - times[0], half[-1][2] - half[0][2]
        grown = slope * span
        kept = min(half[-1][2], KEPT_PROCESSES) - min(half[0][2], KEPT_PROCESSES)
        # A hash table that doubles, or the symbols of one large program, are steps that look like a leak in a short run.
        flat = FLAT_MB if span >= 60 else STEP_MB
        if grown > flat * 1e6 + kept * FLAT_KB_PER_PROCESS * 1e3:
            self.problems.append(f"the tracer's memory grew by {grown / 1e6:.1f} MB in {span:.0f} s, with {ended} processes")
        return {"grown_mb": grown / 1e6, "span_s": span, "ended": ended, "memory_mb": memory[-1][1] / 1e6}


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, help="duration in seconds, instead of --minutes")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    seconds = options.seconds or options.minutes * 60
    kill_children_at_exit()
    setup = Setup(options)
    if not setup.simulated:
        raise SystemExit("the soak requires the simulated driver, which writes the oracle")
    with tempfile.TemporaryDirectory() as directory:
        soak, began = Soak(setup, directory, options), time.monotonic()
        long = soak.long_run(seconds * 0.6)
        # Longer runs have more restarts, each of which takes a second.
        rounds = max(1, int(seconds * 0.3 / 60))
        for _ in range(rounds):
            soak.killed_run(seconds * 0.1 / rounds)
            soak.short_run(seconds * 0.15 / rounds)
            soak.restarts += 2
    account, load = soak.account, soak.load
    problems = soak.problems + account.problems + load.problems
    if account.lost:
        problems.append(f"{account.lost} events were lost")
    if not account.compared:
        problems.append("no process was compared with the oracle")
    print(f"{time.monotonic() - began:.0f} s: {load.started} programs, {load.killed} of them killed; {account.compared} processes "
          f"compared with the oracle, {account.late} had started before the tracer, {account.untraced} exited without one; "
          f"{soak.restarts} restarts, {soak.kills} of them after SIGKILL; {account.reports} reports, {account.lost} events lost")
    print(f"tracer: {long['cpu_percent']:.1f} % of a core, {long['memory_mb']:.1f} MB private, {long['grown_mb']:+.2f} MB over the "
          f"last {long['span_s']:.0f} s ({long['ended']} processes exited); {soak.entries} map entries left")
    for problem in problems[:40]:
        print(f"WRONG: {problem}")
    if options.results:
        values = {"seconds": seconds, "programs": load.started, "killed": load.killed, "compared": account.compared,
                   "late": account.late, "restarts": soak.restarts, "sigkills": soak.kills, "reports": account.reports,
                   "lost": account.lost, "entries_left": soak.entries, "problems": problems, "long": long}
        results.store(options.results, options.machine, "soak", values, {**machine.measurement_facts(setup.vramscope), "driver": "simulated"})
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
