"""The mixed load: programs of the simulator that come and go, some of them killed."""
import os
import random
import signal
import subprocess
import time

from bench.processes import STARTED, start

# What they leave live, and who forks, execs or shares: docs/internals/simulator.md.
PROGRAMS = [
    ["train", "--steps", "40", "--step-ms", "5", "--keep-every", "10"],
    ["threads", "--threads", "4", "--duration", "0.8"],
    ["stressor", "--procs", "2", "--duration", "0.8", "--sleep-ms", "4"],
    ["anomaly", "--iterations", "8", "--iter-ms", "20"],
    ["spam", "--throughput", "5000", "--duration", "0.7", "--free-ratio", "0.9"],
    ["spam", "--throughput", "max", "--count", "20000"],
    ["hold", "--count", "500", "--size", "4096", "--wait-ms", "300"],
    ["oom", "--wait-ms", "50"],
    ["contexts"],
    ["kinds"],
    ["fork"],
    ["exec"],
    ["launches", "--iterations", "200", "--threads", "2", "--graphs", "5"],
    ["copies", "--iterations", "3"],
    ["ipc"],
    ["dlopen-late", "--delay-ms", "100", "--work-ms", "100", "--wait-ms", "50"],
    ["random", "--ops", "600", "--threads", "2"],
    ["random", "--ops", "1500", "--no-illegal"],
    ["leak3", "--work-ms", "200", "--wait-ms", "100"],
]
# One in so many is killed before its end.
KILLED = 7


class Target:
    def __init__(self, place, ledger, number, arguments, doom):
        self.arguments, self.killed = arguments, False
        self.doom = time.monotonic() + doom if doom else None
        self.errors = os.path.join(ledger, f"errors-{number}")
        environment = place.environment(SIM_ORACLE_DIR=ledger)
        environment["SIM_MEMORY"] = "24G"
        with open(self.errors, "w") as errors:
            self.process = start([place.workload, "--seed", number, *arguments], env=environment,
                                 stdout=subprocess.DEVNULL, stderr=errors)

    def look(self):
        """Whether it has ended; kills it when its time has come."""
        if self.doom and time.monotonic() >= self.doom and self.process.poll() is None:
            self.killed = True
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        return self.process.poll() is not None

    def problem(self):
        code = self.process.returncode
        if code == 0 or (self.killed and code == -signal.SIGKILL):
            return None
        with open(self.errors) as file:
            return f"`workload {' '.join(self.arguments)}` ended with {code}: {file.read()[-300:].strip()}"


class Load:
    """Keeps some programs running at all times."""

    def __init__(self, place, ledger, seed, at_once=3):
        self.place, self.ledger, self.random, self.at_once = place, ledger, random.Random(seed), at_once
        self.running, self.problems, self.started, self.killed, self.kinds = [], [], 0, 0, set()

    def look(self, more=True):
        """Takes away those that ended, and starts others in their place."""
        for target in [target for target in self.running if target.look()]:
            self.running.remove(target)
            STARTED.remove(target.process)
            self.killed += target.killed
            problem = target.problem()
            if problem:
                self.problems.append(problem)
            os.unlink(target.errors)
        while more and len(self.running) < self.at_once:
            # Each of them once, then whatever comes.
            rank = self.started
            arguments = PROGRAMS[rank] if rank < len(PROGRAMS) else self.random.choice(PROGRAMS)
            doomed = rank >= len(PROGRAMS) and self.random.randrange(KILLED) == 0
            doom = self.random.uniform(0.02, 0.8) if doomed else None
            self.started += 1
            self.running.append(Target(self.place, self.ledger, self.started, arguments, doom))

    def drain(self, patience=60):
        """Waits for the end of all."""
        until = time.monotonic() + patience
        while self.running:
            self.look(more=False)
            if time.monotonic() > until:
                names = ", ".join(target.arguments[0] for target in self.running)
                raise RuntimeError(f"still running after {patience} s: {names}")
            time.sleep(0.02)
