"""Faults of the tracer's machine at random moments: what fails, and for how long.

Every fault has a begin and an end. `environment` and `prefix` are those of the tracer's command.
"""
import contextlib
import errno
import json
import os
import pathlib
import shlex
import signal
import subprocess
import time

import programs
from lib import bpf, leftovers
from lib.processes import start, stop

HERE = os.path.dirname(os.path.abspath(__file__))

# System calls that an operation uses, and the errors that they can return.
READS = ("openat,read,pread64,readlink,readlinkat,getdents64,newfstatat,statx", ["EIO", "EMFILE", "EACCES", "ESTALE"])
# Not futex: a wake-up is never interrupted.
WAITS = ("epoll_wait,poll,ppoll,read,write,openat,clock_nanosleep", ["EINTR"])
ALLOCATIONS = ("bpf,mmap,perf_event_open,epoll_create1,eventfd2", ["ENOMEM", "EMFILE", "ENOSPC"])
# Which of its first calls can fail at the start; the dynamic linker also maps memory.
AT_START = {"bpf": (1, 300), "mmap": (80, 200), "perf_event_open": (1, 10), "epoll_create1": (1, 4), "eventfd2": (1, 10)}
# Threads of a trace.
THREADS = ["capture", "symbolizer", "gpu-usage"]


class Fault:
    """A fault of nothing."""

    prefix, environment = (), {}

    def __init__(self, round_):
        self.round = round_

    def path(self, name):
        return os.path.join(self.round.directory, name)

    def begin(self, tracer):
        pass

    def end(self, tracer):
        pass

    def remove(self):
        """Cleans up after the round."""


class Disk(Fault):
    """The disk of the recording is full."""

    def __init__(self, round_):
        super().__init__(round_)
        directory = self.path("disk")
        os.mkdir(directory)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", directory], check=True)
        self.ballast = os.path.join(directory, "ballast")
        round_.record_in(directory)

    def begin(self, tracer):
        with open(self.ballast, "wb", buffering=0) as file:
            for size in (1 << 16, 1):
                try:
                    while True:
                        file.write(bytes(size * 64))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def end(self, tracer):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.ballast)

    def remove(self):
        # Lazily: a tracer that failed to end may still have it open.
        subprocess.run(["umount", "--lazy", self.path("disk")], check=True)


class Nvml(Fault):
    """NVML fails or is slow."""

    def __init__(self, round_):
        super().__init__(round_)
        self.text = round_.rng.choice(["code 999", "code 15", "delay 50", "delay 1500"])
        self.environment = {"SIM_NVML_FAULT": self.path("nvml"), "SIM_STATE_FILE": self.path("devices"),
                            "LD_LIBRARY_PATH": os.path.dirname(round_.setup.driver_file)}
        round_.shared = {"SIM_STATE_FILE": self.path("devices")}

    def begin(self, tracer):
        pathlib.Path(self.path("nvml")).write_text(self.text)

    def end(self, tracer):
        os.unlink(self.path("nvml"))


class Clock(Fault):
    """The time of day steps forward or back."""

    def __init__(self, round_):
        super().__init__(round_)
        self.seconds = round_.rng.choice([-1, 1]) * round_.rng.choice([1, 3600, 86400, 400 * 86400])
        self.set(0)
        library = os.path.join(os.path.dirname(round_.setup.vramscope), "clock.so")
        if not os.path.exists(library):
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, os.path.join(HERE, "clock.c"), "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": library, "CLOCK_OFFSET": self.path("clock")}

    def set(self, seconds):
        """Writes in place: the file is mapped."""
        with open(self.path("clock"), "r+b" if os.path.exists(self.path("clock")) else "wb") as file:
            file.write((seconds * 10 ** 9).to_bytes(8, "little", signed=True))

    def begin(self, tracer):
        self.set(self.seconds)

    def end(self, tracer):
        self.set(0)


class Thread(Fault):
    """A thread panics."""

    def __init__(self, round_):
        super().__init__(round_)
        self.thread = round_.rng.choice(THREADS)
        self.environment = {"VRAMSCOPE_FAULT": f"panic:{self.thread}:{self.path('thread')}"}

    def begin(self, tracer):
        pathlib.Path(self.path("thread")).touch()

    def end(self, tracer):
        os.unlink(self.path("thread"))


class Stop(Fault):
    """The tracer is stopped and continued."""

    def begin(self, tracer):
        tracer.process.send_signal(signal.SIGSTOP)

    def end(self, tracer):
        tracer.process.send_signal(signal.SIGCONT)


class Calls(Fault):
    """System calls of the tracer fail, some or all of a number of them in each thread.

    strace stays until the tracer exits: a call from which it detaches could return an error that the rule does not name.
    """

    calls, errors = READS

    def __init__(self, round_):
        super().__init__(round_)
        rng = round_.rng
        first = rng.randint(1, 20)
        when = f"{first}..{first + rng.choice([0, 3, 20, 200])}+{rng.choice([1, 2, 3, 7])}"
        self.rule = f"inject={self.calls}:error={rng.choice(self.errors)}:when={when}"
        self.strace = None

    def begin(self, tracer):
        command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={self.calls}", "-e", self.rule, "-p", tracer.process.pid]
        self.round.lines.append(shlex.join(str(word) for word in command))
        self.strace = start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 10
        while not tracer_of(tracer.process.pid) and self.strace.poll() is None and time.monotonic() < until:
            time.sleep(0.002)

    def remove(self):
        if self.strace:
            stop(self.strace, signal.SIGINT)


class Reads(Calls):
    """Files cannot be opened or read."""


class Waits(Calls):
    """System calls are interrupted."""

    calls, errors = WAITS


class Allocations(Calls):
    """Maps, rings and other kernel objects cannot be allocated, at the start or later."""

    calls, errors = ALLOCATIONS

    def __init__(self, round_):
        super().__init__(round_)
        rng = round_.rng
        self.at_start = rng.randrange(2) == 0
        if self.at_start:
            call = rng.choice(self.calls.split(","))
            once = f"inject={call}:error={rng.choice(self.errors)}:when={rng.randint(*AT_START[call])}"
            self.prefix = ["strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", once]

    def begin(self, tracer):
        if not self.at_start:
            super().begin(tracer)


FAULTS = {"disk": Disk, "nvml": Nvml, "clock": Clock, "thread": Thread, "pause": Stop, "read": Reads, "eintr": Waits,
          "allocation": Allocations}


def draw(rng):
    """Returns the names of one to three faults. A process can have only one strace."""
    names = rng.sample(sorted(FAULTS), rng.randint(1, 3))
    calls = [name for name in names if issubclass(FAULTS[name], Calls)]
    return [name for name in names if name not in calls[1:]]


def tracer_of(pid):
    """Returns the process that traces a process with ptrace, 0 for none."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("TracerPid"))
    except OSError:
        return 0


def long_program(rng):
    """Returns a program that runs for seconds, and whether it has one thread."""
    return rng.choice([
        (["spam", "--throughput", rng.choice(["2000", "20000"]), "--duration", "2", "--free-ratio", "0.8"], True),
        (["train", "--steps", "300", "--step-ms", "5", "--keep-every", "10"], False),
        (["threads", "--threads", "4", "--duration", "2"], False),
        (["stressor", "--procs", "2", "--duration", "2", "--sleep-ms", "2"], False),
        programs.random_program(rng, 20000)])


def timetable(rng, faults):
    """Returns the begin and the end of every fault, by time."""
    events = []
    for fault in faults:
        at = rng.uniform(0.0, 1.5)
        events += [(at, fault.begin), (at + rng.uniform(0.05, 1.5), fault.end)]
    return sorted(events, key=lambda event: event[0])


def run(round_, names, tracer_class):
    """Traces programs while the named faults happen, and compares what is left with the oracle."""
    rng, faults = round_.rng, []
    try:
        faults += [FAULTS[name](round_) for name in names]
        round_.description = ", ".join(names)
        tracer = start_tracer(round_, faults, tracer_class)
        if tracer is None:
            return
        objects, began = bpf.owned(tracer.process.pid), time.monotonic()
        events = timetable(rng, faults)
        starts = [rng.uniform(0.0, 0.5) for _ in range(rng.randint(1, 3))]
        events += [(at, lambda _: round_.target(*long_program(rng), shared=round_.shared)) for at in starts]
        for at, happen in sorted(events, key=lambda event: event[0]):
            time.sleep(max(0.0, began + at - time.monotonic()))
            happen(tracer)
        round_.drain()
        finish(round_, tracer)
        left = leftovers.remaining(objects)
        if left:
            round_.problems.append(f"left behind: {', '.join(left[:8])}")
    finally:
        for fault in faults:
            fault.remove()


def start_tracer(round_, faults, tracer_class):
    """Starts the tracer of all programs of the round. Returns None if it refused to start and said why."""
    environment = {**os.environ, **{name: value for fault in faults for name, value in fault.environment.items()}}
    prefix = next((fault.prefix for fault in faults if fault.prefix), ())
    # Attaching every function separately takes minutes if the machine has several drivers.
    given = ["multi" if str(word).startswith("single") else word for word in round_.arguments]
    arguments = [*given, *round_.setup.driver_option(), "--follow-forks", "--pid", os.getpid()]
    tracer = tracer_class(round_, arguments, prefix, environment)
    if tracer.attached:
        return tracer
    code = tracer.process.wait(60)
    if code != 2 or "error: " not in tracer.messages.text():
        round_.problems.append(f"it did not start, and ended with {code}: {tracer.messages.text()[-400:]}")
    round_.description += f" (did not start: {tracer.messages.text().strip()[-160:]})"
    return None


def finish(round_, tracer):
    """Ends the tracer and checks its exit status, its messages and its last report."""
    early = tracer.process.poll() is not None
    code, last = tracer.finish()
    messages = tracer.messages.text()
    if "injected fault" not in messages:
        round_.check_exit(messages, code)
    codes = [target.process.returncode for target in round_.targets]
    if any(codes):
        round_.problems.append(f"programs ended with {codes}")
    if code not in (0, 2) or (code == 2 and "error: " not in messages and " stopped: " not in messages):
        round_.problems.append(f"the tracer ended with {code}: {messages[-400:]}")
    early = early or (last and "capture_end_time" in json.loads(last).get("uncertainty", {}))
    if early:
        round_.description += f"; ended early: {messages.strip().splitlines()[-1][-160:]}"
        compare_early_end(round_, last)
    else:
        round_.compare(last)
    if round_.recording and os.path.exists(round_.recording) and os.path.getsize(round_.recording):
        round_.replay(round_.recording, last if code == 0 and not early else None)


def compare_early_end(round_, line):
    """Checks the last report of a tracer that ended before the programs: it has no more than the oracle."""
    report = json.loads(line) if line else {"processes": []}
    for process in report["processes"]:
        for target in round_.targets:
            path = os.path.join(target.oracle_dir, f"{process['pid']}.json")
            if not os.path.exists(path):
                continue
            oracle = json.loads(pathlib.Path(path).read_text())
            for ours, theirs in (("allocations_total", "allocations"), ("frees_total", "frees")):
                if process[ours] > oracle[theirs]:
                    round_.problems.append(f"process {process['pid']}: {ours} {process[ours]}, oracle {oracle[theirs]} later")
