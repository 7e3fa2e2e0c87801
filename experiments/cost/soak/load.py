"""The mixed load: workloads that start and exit, some of them killed."""
import os
import random
import signal
import subprocess
import time

from lib.processes import STARTED, start

# docs/internals/simulator.md describes them.
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
# One in this many programs is killed.
KILL_ONE_IN = 7


class Target:
    """A running workload."""

    def __init__(self, setup, oracle_dir, number, arguments, kill_after):
        self.arguments, self.killed = arguments, False
        self.kill_at = time.monotonic() + kill_after if kill_after else None
        self.errors = os.path.join(oracle_dir, f"errors-{number}")
        environment = setup.environment(SIM_ORACLE_DIR=oracle_dir)
        environment["SIM_MEMORY"] = "24G"
        with open(self.errors, "w") as errors:
            self.process = start([setup.workload, "--seed", number, *arguments], env=environment,
                                 stdout=subprocess.DEVNULL, stderr=errors)

    def poll(self):
        """Returns whether it has ended; kills it when that is due."""
        if self.kill_at and time.monotonic() >= self.kill_at and self.process.poll() is None:
            self.killed = True
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        return self.process.poll() is not None

    def problem(self):
        """Returns an unexpected end as text, or None."""
        code = self.process.returncode
        if code == 0 or (self.killed and code == -signal.SIGKILL):
            return None
        with open(self.errors) as file:
            return f"`workload {' '.join(self.arguments)}` ended with {code}: {file.read()[-300:].strip()}"


class Load:
    """Keeps up to `at_once` programs running; starts at most `rate` of them per second, if given."""

    def __init__(self, setup, oracle_dir, seed, rate=None, at_once=3):
        self.setup, self.oracle_dir, self.random, self.at_once = setup, oracle_dir, random.Random(seed), at_once
        self.running, self.problems, self.started, self.killed = [], [], 0, 0
        self.between, self.next_start = 1 / rate if rate else 0.0, 0.0

    def poll(self, more=True):
        """Removes the programs that have ended and starts others instead."""
        for target in [target for target in self.running if target.poll()]:
            self.running.remove(target)
            STARTED.remove(target.process)
            self.killed += target.killed
            problem = target.problem()
            if problem:
                self.problems.append(problem)
            os.unlink(target.errors)
        while more and len(self.running) < self.at_once and time.monotonic() >= self.next_start:
            self.next_start = time.monotonic() + self.between
            # Each program once, then random ones.
            rank = self.started
            arguments = PROGRAMS[rank] if rank < len(PROGRAMS) else self.random.choice(PROGRAMS)
            kill = rank >= len(PROGRAMS) and self.random.randrange(KILL_ONE_IN) == 0
            kill_after = self.random.uniform(0.02, 0.8) if kill else None
            self.started += 1
            self.running.append(Target(self.setup, self.oracle_dir, self.started, arguments, kill_after))

    def drain(self, timeout=60):
        """Waits until all programs have ended."""
        until = time.monotonic() + timeout
        while self.running:
            self.poll(more=False)
            if time.monotonic() > until:
                names = ", ".join(target.arguments[0] for target in self.running)
                raise RuntimeError(f"still running after {timeout} s: {names}")
            time.sleep(0.02)
