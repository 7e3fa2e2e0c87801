#!/usr/bin/env python3
"""Traces a mixed load of processes that start, exit and are killed, for minutes or hours.

usage: run.py [--minutes 10 | --seconds S] [--rate N] [--seed N] [--results FILE] [--plot FILE.svg] …

The first tracer runs for most of the time. Others follow; every second one is killed with SIGKILL under load. With a --rate
of 5 programs per second it uses about a quarter of a core, and the history of exited processes is full after 40 minutes.
Checks that:

- the last report of every process that exits normally equals the oracle of the simulated driver;
- programs exit as they do without a tracer;
- no event is lost;
- memory, open files and threads of the tracer do not grow over the second half of the longest run, except by the history
  of exited processes until that is full;
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

from lib import bpf, leftovers, machine, results
from lib.oracle import ExitedProcesses
from lib.paths import Setup, argument_parser
from lib.processes import Lines, Usage, kill_children_at_exit, start, stop, wait_attached
from load import Load
from samples import Samples


class Tracer:
    """A tracer whose reports are compared with the oracle."""

    def __init__(self, setup, account, targets, seconds):
        self.process = start([setup.vramscope, "trace", "-v", "--json", "--interval", "250ms", "--kernels",
                              *setup.driver_option(), *targets], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.reports = Lines(self.process.stdout, account.add_report)
        self.messages = Lines(self.process.stderr)
        wait_attached(self.messages)
        account.tracer_attached()
        self.usage, self.samples = Usage(self.process.pid), Samples(self.process.pid, seconds)

    def end(self, number):
        code = stop(self.process, number, 120)
        self.reports.finish()
        return code


class Soak:
    def __init__(self, setup, directory, options):
        self.setup, self.problems, self.restarts, self.kills = setup, [], 0, 0
        self.account, self.load = ExitedProcesses(directory), Load(setup, directory, options.seed, options.rate)
        self.targets = ["--all"] if options.targets == "all" else ["--follow-forks", "--pid", str(os.getpid())]
        self.clean = leftovers.code(setup.driver_file)
        self.entries = 0

    def phase(self, tracer, seconds):
        """Runs the load and samples the tracer."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.load.poll()
            self.account.compare()
            if tracer.process.poll() is not None:
                raise RuntimeError(f"the tracer ended with {tracer.process.returncode}: {tracer.messages.text()[-800:]}")
            tracer.samples.take(self.account.lost, self.account.compared + self.load.killed, self.account.site_rows)
            time.sleep(0.05)

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
        tracer = Tracer(self.setup, self.account, self.targets, seconds)
        if leftovers.code(self.setup.driver_file) == self.clean:
            self.problems.append("the probes do not change the driver's code: the check after SIGKILL is void")
        self.phase(tracer, seconds)
        used = tracer.usage.so_far()
        self.check_entries(tracer)
        self.finish(tracer, signal.SIGINT)
        values, problems = tracer.samples.verdict()
        self.problems += problems
        return {"cpu_percent": used["cpu_s"] / used["seconds"] * 100, **values}, tracer.samples

    def finish(self, tracer, number):
        """Ends the tracer cleanly and compares all processes that exited."""
        code = tracer.end(number)
        if code != 0:
            self.problems.append(f"the tracer ended with {code}: {tracer.messages.text()[-400:]}")
        self.account.compare(last=True)

    def killed_run(self, seconds):
        tracer = Tracer(self.setup, self.account, self.targets, seconds)
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
        tracer = Tracer(self.setup, self.account, self.targets, seconds)
        self.phase(tracer, seconds)
        self.check_entries(tracer)
        self.finish(tracer, signal.SIGTERM)


def run(setup, options, seconds):
    """Runs the tracers one after the other."""
    with tempfile.TemporaryDirectory() as directory:
        soak, began = Soak(setup, directory, options), time.monotonic()
        long, samples = soak.long_run(seconds * 0.6)
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
    values = {"seconds": time.monotonic() - began, "programs": load.started, "killed": load.killed,
              "compared": account.compared, "late": account.late, "untraced": account.untraced,
              "restarts": soak.restarts, "sigkills": soak.kills, "reports": account.reports, "lost": account.lost,
              "entries_left": soak.entries, "problems": problems, "long": long}
    return values, samples


def print_verdict(values):
    long = values["long"]
    print(f"{values['seconds']:.0f} s: {values['programs']} programs, {values['killed']} of them killed; {values['compared']} "
          f"processes compared with the oracle, {values['late']} had started before the tracer, {values['untraced']} exited "
          f"without one; {values['restarts']} restarts, {values['sigkills']} of them after SIGKILL; {values['reports']} reports, "
          f"{values['lost']} events lost")
    print(f"tracer: {long['cpu_percent']:.1f} % of a core, {long['memory_mb']:.1f} MB private, {long['resident_mb']:.1f} MB "
          f"resident, {long['grown_mb']:+.2f} MB over the last {long['span_s']:.0f} s ({long['ended']} processes exited, totals of "
          f"{long['kept']} more and {long['kept_rows']} rows of sites are kept); at most {long['most_descriptors']} open files, {long['most_threads']} threads, "
          f"{long['most_entries']} map entries; {values['entries_left']} map entries left")
    for problem in values["problems"][:40]:
        print(f"WRONG: {problem}")
    if not values["problems"]:
        print("ok: memory, open files and threads do not grow, nothing was lost, nothing is left behind")


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, help="duration in seconds, instead of --minutes")
    parser.add_argument("--rate", type=float, help="programs to start per second at most [default: 3 at a time, no limit]")
    parser.add_argument("--targets", choices=["all", "own"], default="all",
                        help="trace all processes, or only the programs of the soak, beside other tests [default: all]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", help="SVG file to draw memory, open files, map entries and losses in")
    options = parser.parse_args()
    kill_children_at_exit()
    setup = Setup(options)
    if not setup.simulated:
        raise SystemExit("the soak requires the simulated driver, which writes the oracle")
    values, samples = run(setup, options, options.seconds or options.minutes * 60)
    print_verdict(values)
    if options.plot:
        with open(options.plot, "w") as file:
            file.write(samples.plot(f"Tracer during the soak, {options.machine}"))
    if options.results:
        results.store(options.results, options.machine, "soak", values, {**machine.measurement_facts(setup.vramscope), "driver": "simulated"})
    sys.exit(1 if values["problems"] else 0)


if __name__ == "__main__":
    main()
