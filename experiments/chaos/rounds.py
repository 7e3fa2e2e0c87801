"""One round: what is run, what happens to it, and what must be true at the end."""
import glob
import json
import os
import random
import shlex
import signal
import subprocess
import time

import check
import leftovers
import programs

from bench import bpf
from bench.processes import STARTED, Lines, start, stop

# Detaching each function by itself takes long on a busy machine.
PATIENCE = 300


class Target:
    """A program with a directory for the accounts of it and of the processes that it begins."""

    def __init__(self, ledger, process, single_thread):
        self.ledger, self.process, self.single_thread = ledger, process, single_thread
        # Killed before its end; called the driver before the trace.
        self.killed = self.early = False


class Tracer:
    def __init__(self, found, arguments):
        self.output = os.path.join(found.directory, "reports")
        command = [found.place.vramscope, "trace", "--json", *arguments]
        with open(self.output, "w") as output:
            self.process = found.start(command, stdout=output, stderr=subprocess.PIPE, text=True)
        self.messages = Lines(self.process.stderr)
        self.messages.wait_for(lambda line: "attached to" in line, 60, "the tracer's probes")

    def finish(self, number=signal.SIGINT):
        """Ends it; its last report."""
        code = stop(self.process, number, PATIENCE)
        self.messages.finish()
        return code, last_line(self.output)


def last_line(path):
    with open(path) as file:
        lines = file.read().splitlines()
    return lines[-1] if lines else None


class Round:
    def __init__(self, place, seed, kind, directory):
        self.place, self.seed, self.directory = place, seed, directory
        self.dice = random.Random(seed)
        drawn = self.dice.choice(["command"] * 5 + ["storm"] * 2 + ["attach", "reuse", "kill", "stop"])
        self.kind = kind or drawn
        self.problems, self.lines, self.targets = [], [], []
        self.compared = self.inexact = 0
        self.arguments, self.recording = programs.options(self.dice, directory)
        self.by_kernel = "--attach-mode" not in self.arguments or "session" in self.arguments
        self.about, self.kept = "", None

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
        shown = {name: value for name, value in settings.get("env", {}).items() if name.startswith("SIM_")}
        self.lines.append(" ".join([f"{name}={shlex.quote(value)}" for name, value in shown.items()] + [shlex.join(command)]))
        return start(command, **settings)

    def environment(self, ledger, failing=None, memory="24G"):
        environment = self.place.environment(SIM_ORACLE_DIR=ledger)
        environment["SIM_MEMORY"] = memory
        environment.pop("SIM_INJECT_FAILURES", None)
        if failing:
            environment["SIM_INJECT_FAILURES"] = failing
        return environment

    def target(self, program, single_thread=False, failing=None, **settings):
        ledger = os.path.join(self.directory, f"ledger-{len(self.targets)}")
        os.mkdir(ledger)
        command = program if os.path.isabs(str(program[0])) else [self.place.workload, *program]
        settings = {"stdout": subprocess.DEVNULL, **settings}
        process = self.start(command, env=self.environment(ledger, failing), stderr=subprocess.DEVNULL, **settings)
        self.targets.append(Target(ledger, process, single_thread))
        return self.targets[-1]

    def short_program(self):
        if self.dice.randrange(4) == 0:
            return programs.random_program(self.dice, 800)
        program = self.dice.choice(programs.SHORT)
        return program, False

    def drain(self):
        until = time.monotonic() + PATIENCE
        while any(target.process.poll() is None for target in self.targets):
            if time.monotonic() > until:
                raise RuntimeError("programs did not end")
            time.sleep(0.01)

    # What must be true.

    def compare(self, line):
        """Every account with its process in a report."""
        if line is None:
            self.problems.append("there is no report")
            return
        report, self.pairs = json.loads(line), []
        self.problems += check.totals(report)
        for target in self.targets:
            for path in glob.glob(os.path.join(target.ledger, "[0-9]*.json")):
                self.one(report, path, target)
            pid = target.process.pid
            ended = [p for p in report["processes"] if p["pid"] == pid]
            if target.killed and ended and not all(p["exited"] for p in ended):
                self.problems.append(f"process {pid} was killed, and is reported to run")
        self.problems += check.sum_of(report, self.pairs)

    def one(self, report, path, target):
        with open(path) as file:
            oracle = json.load(file)
        pid = oracle["pid"]
        torch = os.path.join(target.ledger, f"torch-{pid}.json")
        truth = json.load(open(torch)) if os.path.exists(torch) else None  # noqa: SIM115
        entries = [p for p in report["processes"] if p["pid"] == pid and p.get("end_reason") != "exec"]
        if not entries:
            if oracle["allocations"] and not report["lost_events"] and not target.early:
                self.problems.append(f"process {pid} is not in the report, and nothing was lost")
            return
        # One process id may have been used several times: one of them is this one.
        results = [self.differences(report, p, oracle, target, truth) for p in entries]
        found = min(results, key=len)
        process = entries[results.index(found)]
        self.compared += 1
        self.inexact += not process["exact"]
        if not process["before_trace"]:
            self.pairs.append((process, oracle))
        self.problems += [f"process {pid}: {problem}" for problem in found]

    def differences(self, report, process, oracle, target, torch):
        if process["exact"]:
            found = check.exact(process, oracle, target.single_thread, self.by_kernel, torch)
            return [f"exact, but {problem}" for problem in found]
        found = check.bounded(process, oracle, check.unattributed(report))
        return [f"not exact, and {problem}" for problem in found]

    def replay(self, recording, line):
        """The recording of a trace gives its last report again."""
        command = [self.place.vramscope, "replay", recording, "--format", "json", "--top", "1000000"]
        self.lines.append(shlex.join(command))
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        again = done.stdout.splitlines()[-1] if done.stdout else None
        if done.returncode != 0 or again is None:
            self.problems.append(f"the recording cannot be read ({done.returncode}): {done.stderr[-300:]}")
        elif line is not None and again != line:
            ours, then = json.loads(again), json.loads(line)
            fields = [name for name in then if ours.get(name) != then[name]]
            self.problems.append(f"the recording gives another last report: {', '.join(fields)} differ")

    def said(self, messages, code):
        """No panic, whatever else."""
        if "panicked" in messages or code < 0 or code == 101:
            self.problems.append(f"the tracer ended with {code}: {messages[-400:]}")


# Kinds of rounds.


def command(found):
    """A random program under `trace -- COMMAND`."""
    dice = found.dice
    choice = dice.randrange(10)
    if choice < 6:
        program, single = programs.random_program(dice)
    elif choice < 8:
        program, single = programs.contexts_program(dice)
    else:
        program, single = dice.choice(programs.SHORT), False
    failing = programs.failing(dice) if dice.randrange(2) else None
    ledger = os.path.join(found.directory, "ledger-0")
    os.mkdir(ledger)
    if not os.path.isabs(str(program[0])):
        program = [found.place.workload, *program]
    output = os.path.join(found.directory, "reports")
    line = [found.place.vramscope, "trace", "--json", *found.arguments, *found.place.driver_option(), "--", *program]
    with open(output, "w") as file:
        tracer = found.start(line, env=found.environment(ledger, failing), stdout=file, stderr=subprocess.PIPE, text=True)
    messages = Lines(tracer.stderr)
    code = tracer.wait(PATIENCE)
    messages.finish()
    found.said(messages.text(), code)
    found.about = f"{shlex.join(str(word) for word in program[-12:])}{' with failures' if failing else ''}"
    found.targets.append(Target(ledger, tracer, single))
    last = last_line(output)
    found.compare(last)
    if found.recording:
        found.replay(found.recording, last)


def storm(found):
    """Many short processes; some are killed."""
    dice = found.dice
    tracer = Tracer(found, [*found.arguments, *found.place.driver_option(), "-a"])
    count, at_once, doom = dice.randint(20, 120), dice.randint(2, 8), []
    failing = programs.failing(dice) if dice.randrange(3) == 0 else None
    while len(found.targets) < count or any(t.process.poll() is None for t in found.targets):
        now = time.monotonic()
        for when, target in list(doom):
            if now >= when:
                doom.remove((when, target))
                if target.process.poll() is None:
                    target.killed = True
                    os.killpg(target.process.pid, signal.SIGKILL)
        running = sum(t.process.poll() is None for t in found.targets)
        if len(found.targets) < count and running < at_once:
            target = found.target(*found.short_program(), failing=failing)
            if dice.randrange(6) == 0:
                doom.append((now + dice.uniform(0.0, 0.3), target))
        else:
            time.sleep(0.002)
    code, last = tracer.finish()
    found.said(tracer.messages.text(), code)
    found.about = f"{count} programs, {sum(t.killed for t in found.targets)} killed"
    found.compare(last)
    if found.recording:
        found.replay(found.recording, last)


def attach(found):
    """Processes that run already, of which some have called the driver."""
    dice = found.dice
    for _ in range(dice.randint(1, 4)):
        program, single = programs.random_program(dice) if dice.randrange(2) else (dice.choice(programs.SHORT), False)
        waits = dice.randrange(4) != 0
        target = found.target((["--wait-start"] if waits else []) + program, single,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        target.early = not waits
        if waits:
            Lines(target.process.stdout).wait_for(lambda line: line.strip() == "ready", 60, "the program")
    pids = [word for target in found.targets for word in ("-p", target.process.pid)]
    try:
        tracer = Tracer(found, [*found.arguments, *found.place.driver_option(), *pids, "--follow-forks"])
    except RuntimeError:
        # One that did not wait has ended before.
        if not any(target.early for target in found.targets):
            raise
        tracer = None
    for target in found.targets:
        if not target.early and target.process.poll() is None:
            target.process.stdin.write("go\n")
            target.process.stdin.close()
    found.drain()
    found.about = f"{len(found.targets)} programs, {sum(target.early for target in found.targets)} of which did not wait"
    if tracer is not None:
        code, last = tracer.finish()
        found.said(tracer.messages.text(), code)
        found.compare(last)


def reuse(found):
    """The same process id, again and again."""
    dice = found.dice
    tracer = Tracer(found, [*found.arguments, *found.place.driver_option(), "-a"])
    first, count, again = None, dice.randint(10, 40), 0
    for _ in range(count):
        if first is not None:
            with open("/proc/sys/kernel/ns_last_pid", "w") as file:
                file.write(str(first - 1))
        target = found.target(["--seed", dice.randrange(1 << 31), "random", "--ops", dice.randint(50, 300)], True)
        again += target.process.pid == first
        first = first or target.process.pid
        if dice.randrange(5) == 0:
            time.sleep(dice.uniform(0.0, 0.05))
            target.killed = target.process.poll() is None
            target.process.kill()
        target.process.wait(PATIENCE)
    code, last = tracer.finish()
    found.said(tracer.messages.text(), code)
    found.about = f"process {first} {again + 1} times of {count}"
    found.compare(last)


def kill(found):
    """The tracer is killed in the middle of a load: nothing of it stays, and nothing notices."""
    dice = found.dice
    clean = leftovers.code(found.place.driver_file)
    tracer = Tracer(found, [*found.arguments, *found.place.driver_option(), "-a"])
    for _ in range(dice.randint(2, 6)):
        found.target(["--seed", dice.randrange(1 << 31), "random", "--ops", 40000, "--threads", dice.randint(1, 3)])
    time.sleep(dice.uniform(0.0, 2.0))
    objects = bpf.owned(tracer.process.pid)
    tracer.process.kill()
    tracer.process.wait(PATIENCE)
    found.about = f"{len(found.targets)} programs"
    left = leftovers.remaining(objects)
    if left:
        found.problems.append(f"left after SIGKILL: {', '.join(left[:8])}")
    if leftovers.stays_changed(found.place.driver_file, clean):
        found.problems.append("the driver's code is still changed after SIGKILL")
    found.drain()
    codes = [target.process.returncode for target in found.targets]
    if any(codes):
        found.problems.append(f"programs ended with {codes}")
    if found.recording and os.path.getsize(found.recording):
        found.replay(found.recording, None)


def pause(found):
    """The tracer stands still under load: what is lost is counted, and the bounds hold."""
    dice = found.dice
    if "--ring-size" not in found.arguments:
        found.arguments += ["--ring-size", dice.choice([4096, 65536, 1 << 20])]
    tracer = Tracer(found, [*found.arguments, *found.place.driver_option(), "-a"])
    for _ in range(dice.randint(1, 4)):
        program = dice.choice([["spam", "--throughput", "max", "--count", dice.randint(1000, 60000), "--free-ratio", "0.7"],
                               ["threads", "--threads", "4", "--duration", "1.5"],
                               programs.random_program(dice, 20000)[0]])
        found.target(program)
    for _ in range(dice.randint(1, 3)):
        time.sleep(dice.uniform(0.05, 0.5))
        tracer.process.send_signal(signal.SIGSTOP)
        time.sleep(dice.uniform(0.1, 3.0))
        tracer.process.send_signal(signal.SIGCONT)
    found.drain()
    code, last = tracer.finish()
    found.said(tracer.messages.text(), code)
    found.about = f"{len(found.targets)} programs, {json.loads(last)['lost_events'] if last else '?'} events lost"
    found.compare(last)
    if found.recording:
        found.replay(found.recording, last)


KINDS = {"command": command, "storm": storm, "attach": attach, "reuse": reuse, "kill": kill, "stop": pause}
