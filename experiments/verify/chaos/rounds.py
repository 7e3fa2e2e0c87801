"""One chaos round: programs, accidents, and the checks at the end."""
import glob
import json
import os
import pathlib
import random
import shlex
import signal
import subprocess
import time

import check
import faults
import programs
from lib import bpf, leftovers
from lib.processes import STARTED, Lines, start, stop, wait_attached

# Seconds. Detaching every function separately takes long on a busy machine.
TIMEOUT = 300

# The most threads of a program.
MAX_THREADS = 9


class Target:
    """A program, with the directory of its oracle and those of its child processes."""

    def __init__(self, oracle_dir, process, single_thread):
        self.oracle_dir, self.process, self.single_thread = oracle_dir, process, single_thread
        # Killed before it exited; called the driver before the trace.
        self.killed = self.early = False


class Tracer:
    """A tracer that writes its reports to a file."""

    def __init__(self, round_, arguments, prefix=(), environment=None):
        """With an `environment` of faults, it may fail to start."""
        self.output, self.attached = os.path.join(round_.directory, "reports"), True
        command = [*prefix, round_.setup.vramscope, "trace", "-v", "--json", *arguments]
        with open(self.output, "w") as output:
            self.process = round_.start(command, env=environment, stdout=output, stderr=subprocess.PIPE, text=True)
        self.messages = Lines(self.process.stderr)
        try:
            wait_attached(self.messages)
        except RuntimeError:
            if environment is None or not self.messages.ended:
                raise
            self.attached = False

    def finish(self, number=signal.SIGINT):
        """Ends the tracer and returns its exit code and last report."""
        code = stop(self.process, number, TIMEOUT)
        self.messages.finish()
        return code, last_line(self.output)


def last_line(path):
    with open(path) as file:
        lines = file.read().splitlines()
    return lines[-1] if lines else None


class Round:
    """A round with its random choices, processes and problems."""

    def __init__(self, setup, seed, kind, directory):
        self.setup, self.seed, self.directory = setup, seed, directory
        self.rng = random.Random(seed)
        drawn = self.rng.choice(["command"] * 5 + ["storm"] * 2 + ["attach", "reuse", "kill", "stop"])
        self.kind, self.shared = kind or drawn, {}
        self.problems, self.lines, self.targets = [], [], []
        self.compared = self.inexact = 0
        self.arguments, self.recording = programs.trace_options(self.rng, directory)
        self.by_kernel = "--attach-mode" not in self.arguments or "session" in self.arguments
        self.description, self.kept = "", None

    def run(self):
        KINDS[self.kind](self)
        for target in self.targets:
            if target.process.poll() is None:
                self.problems.append(f"still running: {target.process.args}")
                stop(target.process, signal.SIGKILL)
        for process in [p for p in STARTED if p.poll() is not None]:
            STARTED.remove(process)

    # Processes.

    def start(self, command, **settings):
        command = [str(word) for word in command]
        environment = settings.get("env") or {}
        shown = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        self.lines.append(" ".join([f"{name}={shlex.quote(value)}" for name, value in shown.items()] + [shlex.join(command)]))
        return start(command, **settings)

    def environment(self, oracle_dir, failing=None, memory="24G"):
        environment = self.setup.environment(SIM_ORACLE_DIR=oracle_dir)
        environment["SIM_MEMORY"] = memory
        environment.pop("SIM_INJECT_FAILURES", None)
        if failing:
            environment["SIM_INJECT_FAILURES"] = failing
        return environment

    def record_in(self, directory):
        """Records into a directory."""
        if self.recording is None:
            self.arguments += ["--record", ""]
        self.recording = os.path.join(directory, "run.arrows")
        self.arguments[self.arguments.index("--record") + 1] = self.recording

    def target(self, program, single_thread=False, failing=None, shared=None, **settings):
        oracle_dir = os.path.join(self.directory, f"oracle-{len(self.targets)}")
        os.mkdir(oracle_dir)
        command = program if os.path.isabs(str(program[0])) else [self.setup.workload, *program]
        settings = {"stdout": subprocess.DEVNULL, **settings}
        process = self.start(command, env={**self.environment(oracle_dir, failing), **(shared or {})},
                             stderr=subprocess.DEVNULL, **settings)
        self.targets.append(Target(oracle_dir, process, single_thread))
        return self.targets[-1]

    def short_program(self):
        if self.rng.randrange(4) == 0:
            return programs.random_program(self.rng, 800)
        program = self.rng.choice(programs.SHORT)
        return program, False

    def drain(self):
        until = time.monotonic() + TIMEOUT
        while any(target.process.poll() is None for target in self.targets):
            if time.monotonic() > until:
                raise RuntimeError("programs did not exit")
            time.sleep(0.01)

    # Checks.

    def compare(self, line):
        """Compares every oracle with its process in a report."""
        if line is None:
            self.problems.append("no report was written")
            return
        report, self.pairs = json.loads(line), []
        self.problems += check.totals(report)
        oracles = {}
        for target in self.targets:
            for path in glob.glob(os.path.join(target.oracle_dir, "[0-9]*.json")):
                oracle = json.loads(pathlib.Path(path).read_text())
                oracles.setdefault(oracle["pid"], []).append((oracle, target))
            pid = target.process.pid
            ended = [p for p in report["processes"] if p["pid"] == pid]
            if target.killed and ended and not all(p["exited"] for p in ended):
                self.problems.append(f"process {pid} was killed, but is reported as running")
        for pid, targets in oracles.items():
            self.compare_pid(report, pid, targets)
        self.problems += check.all_received_or_lost(report, self.pairs)

    def compare_pid(self, report, pid, targets):
        """Compares the programs that had a process id, one after the other, with the report's entries of that id."""
        entries = [p for p in report["processes"] if p["pid"] == pid and p.get("end_reason") != "exec"]
        differences = [[self.differences(report, p, oracle, target) for p in entries] for oracle, target in targets]
        entry_of = check.matching([[not found for found in row] for row in differences])
        # A process of which all records were lost has no entry. The report counts it.
        lost = report["uncertainty"]["lost_processes"] if report.get("uncertainty") else 0
        for index, (oracle, target) in enumerate(targets):
            if not entries:
                if oracle["allocations"] and not report["lost_events"] and not target.early:
                    self.problems.append(f"process {pid} is not in the report, although nothing was lost")
                continue
            if entry_of[index] is None and lost:
                lost -= 1
                continue
            # The entry with the fewest differences shows best what is wrong.
            number = entry_of[index] if entry_of[index] is not None else differences[index].index(min(differences[index], key=len))
            process = entries[number]
            self.compared += 1
            self.inexact += not process["exact"]
            if not process["before_trace"]:
                self.pairs.append((process, oracle))
            self.problems += [f"process {pid}: {problem}" for problem in differences[index][number]]

    def differences(self, report, process, oracle, target):
        path = os.path.join(target.oracle_dir, f"torch-{oracle['pid']}.json")
        torch = json.loads(pathlib.Path(path).read_text()) if os.path.exists(path) else None
        if process["exact"]:
            found = check.exact(process, oracle, target.single_thread, self.by_kernel, torch)
            return [f"exact, but {problem}" for problem in found]
        # A program that fails ends with the other threads inside of calls.
        unreturned = MAX_THREADS if target.killed or target.process.returncode else 0
        found = check.bounded(process, oracle, check.unattributed(report), unreturned)
        return [f"not exact, but {problem}" for problem in found]

    def replay(self, recording, line):
        """Checks that the replayed recording has the same last report."""
        command = [self.setup.vramscope, "replay", recording, "--format", "json", "--top", "1000000"]
        self.lines.append(shlex.join(command))
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        replayed = done.stdout.splitlines()[-1] if done.stdout else None
        if done.returncode != 0 or replayed is None:
            self.problems.append(f"the recording cannot be read ({done.returncode}): {done.stderr[-300:]}")
        elif line is not None and replayed != line:
            ours, printed = json.loads(replayed), json.loads(line)
            fields = [name for name in printed if ours.get(name) != printed[name]]
            self.problems.append(f"the replayed last report differs in {', '.join(fields)}")

    def check_exit(self, messages, code):
        """Checks that the tracer did not panic or die."""
        if "panicked" in messages or code < 0 or code == 101:
            self.problems.append(f"the tracer ended with {code}: {messages[-400:]}")


# Kinds of rounds.


def command(round_):
    """Traces a random program with `trace -- COMMAND`."""
    rng = round_.rng
    choice = rng.randrange(10)
    if choice < 6:
        program, single = programs.random_program(rng)
    elif choice < 8:
        program, single = programs.contexts_program(rng)
    else:
        program, single = rng.choice(programs.SHORT), False
    failing = programs.injected_failures(rng) if rng.randrange(2) else None
    oracle_dir = os.path.join(round_.directory, "oracle-0")
    os.mkdir(oracle_dir)
    if not os.path.isabs(str(program[0])):
        program = [round_.setup.workload, *program]
    output = os.path.join(round_.directory, "reports")
    line = [round_.setup.vramscope, "trace", "--json", *round_.arguments, *round_.setup.driver_option(), "--", *program]
    with open(output, "w") as file:
        tracer = round_.start(line, env=round_.environment(oracle_dir, failing), stdout=file, stderr=subprocess.PIPE, text=True)
    messages = Lines(tracer.stderr)
    code = tracer.wait(TIMEOUT)
    messages.finish()
    round_.check_exit(messages.text(), code)
    round_.description = f"{shlex.join(str(word) for word in program[-12:])}{' with failures' if failing else ''}"
    round_.targets.append(Target(oracle_dir, tracer, single))
    last = last_line(output)
    round_.compare(last)
    if round_.recording:
        round_.replay(round_.recording, last)


def storm(round_):
    """Starts many short processes and kills some of them."""
    rng = round_.rng
    tracer = Tracer(round_, [*round_.arguments, *round_.setup.driver_option(), "-a"])
    count, at_once, kills = rng.randint(20, 120), rng.randint(2, 8), []
    failing = programs.injected_failures(rng) if rng.randrange(3) == 0 else None
    while len(round_.targets) < count or any(t.process.poll() is None for t in round_.targets):
        now = time.monotonic()
        for when, target in list(kills):
            if now >= when:
                kills.remove((when, target))
                if target.process.poll() is None:
                    target.killed = True
                    os.killpg(target.process.pid, signal.SIGKILL)
        running = sum(t.process.poll() is None for t in round_.targets)
        if len(round_.targets) < count and running < at_once:
            target = round_.target(*round_.short_program(), failing=failing)
            if rng.randrange(6) == 0:
                kills.append((now + rng.uniform(0.0, 0.3), target))
        else:
            time.sleep(0.002)
    code, last = tracer.finish()
    round_.check_exit(tracer.messages.text(), code)
    round_.description = f"{count} programs, {sum(t.killed for t in round_.targets)} killed"
    round_.compare(last)
    if round_.recording:
        round_.replay(round_.recording, last)


def attach(round_):
    """Attaches to running processes, some of which have called the driver."""
    rng = round_.rng
    for _ in range(rng.randint(1, 4)):
        program, single = programs.random_program(rng) if rng.randrange(2) else (rng.choice(programs.SHORT), False)
        waits = rng.randrange(4) != 0
        target = round_.target((["--wait-start"] if waits else []) + program, single,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        target.early = not waits
        if waits:
            Lines(target.process.stdout).wait_for(lambda line: line.strip() == "ready", 60, "the program")
    pids = [word for target in round_.targets for word in ("-p", target.process.pid)]
    try:
        tracer = Tracer(round_, [*round_.arguments, *round_.setup.driver_option(), *pids, "--follow-forks"])
    except RuntimeError:
        # A program that did not wait may have exited before.
        if not any(target.early for target in round_.targets):
            raise
        tracer = None
    for target in round_.targets:
        if not target.early and target.process.poll() is None:
            target.process.stdin.write("go\n")
            target.process.stdin.close()
    round_.drain()
    round_.description = f"{len(round_.targets)} programs, {sum(target.early for target in round_.targets)} of which did not wait"
    if tracer is not None:
        code, last = tracer.finish()
        round_.check_exit(tracer.messages.text(), code)
        round_.compare(last)


def reuse(round_):
    """Reuses the same process id."""
    rng = round_.rng
    tracer = Tracer(round_, [*round_.arguments, *round_.setup.driver_option(), "-a"])
    first, count, reused = None, rng.randint(10, 40), 0
    for _ in range(count):
        if first is not None:
            with open("/proc/sys/kernel/ns_last_pid", "w") as file:
                file.write(str(first - 1))
        target = round_.target(["--seed", rng.randrange(1 << 31), "random", "--ops", rng.randint(50, 300)], True)
        reused += target.process.pid == first
        first = first or target.process.pid
        if rng.randrange(5) == 0:
            time.sleep(rng.uniform(0.0, 0.05))
            target.killed = target.process.poll() is None
            target.process.kill()
        target.process.wait(TIMEOUT)
    code, last = tracer.finish()
    round_.check_exit(tracer.messages.text(), code)
    round_.description = f"process {first} {reused + 1} times of {count}"
    round_.compare(last)


def kill(round_):
    """Kills the tracer under load: it must leave nothing behind, and programs must not notice."""
    rng = round_.rng
    clean = leftovers.code(round_.setup.driver_file)
    tracer = Tracer(round_, [*round_.arguments, *round_.setup.driver_option(), "-a"])
    for _ in range(rng.randint(2, 6)):
        round_.target(["--seed", rng.randrange(1 << 31), "random", "--ops", 40000, "--threads", rng.randint(1, 3)])
    time.sleep(rng.uniform(0.0, 2.0))
    objects = bpf.owned(tracer.process.pid)
    tracer.process.kill()
    tracer.process.wait(TIMEOUT)
    round_.description = f"{len(round_.targets)} programs"
    left = leftovers.remaining(objects)
    if left:
        round_.problems.append(f"left after SIGKILL: {', '.join(left[:8])}")
    if leftovers.code_stays_changed(round_.setup.driver_file, clean):
        round_.problems.append("the driver's code is still changed after SIGKILL")
    round_.drain()
    codes = [target.process.returncode for target in round_.targets]
    if any(codes):
        round_.problems.append(f"programs ended with {codes}")
    if round_.recording and os.path.getsize(round_.recording):
        round_.replay(round_.recording, None)


def pause(round_):
    """Stops the tracer under load: lost events must be counted, and bounds must hold."""
    rng = round_.rng
    if "--ring-size" not in round_.arguments:
        round_.arguments += ["--ring-size", rng.choice([4096, 65536, 1 << 20])]
    tracer = Tracer(round_, [*round_.arguments, *round_.setup.driver_option(), "-a"])
    for _ in range(rng.randint(1, 4)):
        program = rng.choice([["spam", "--throughput", "max", "--count", rng.randint(1000, 60000), "--free-ratio", "0.7"],
                               ["threads", "--threads", "4", "--duration", "1.5"],
                               programs.random_program(rng, 20000)[0]])
        round_.target(program)
    for _ in range(rng.randint(1, 3)):
        time.sleep(rng.uniform(0.05, 0.5))
        tracer.process.send_signal(signal.SIGSTOP)
        time.sleep(rng.uniform(0.1, 3.0))
        tracer.process.send_signal(signal.SIGCONT)
    round_.drain()
    code, last = tracer.finish()
    round_.check_exit(tracer.messages.text(), code)
    round_.description = f"{len(round_.targets)} programs, {json.loads(last)['lost_events'] if last else '?'} events lost"
    round_.compare(last)
    if round_.recording:
        round_.replay(round_.recording, last)


def mixed_faults(round_):
    """Draws one to three faults."""
    faults.run(round_, faults.draw(round_.rng), Tracer)


KINDS = {"command": command, "storm": storm, "attach": attach, "reuse": reuse, "kill": kill, "stop": pause,
         "faults": mixed_faults}
KINDS.update({name: lambda round_, name=name: faults.run(round_, [name], Tracer) for name in faults.FAULTS})
