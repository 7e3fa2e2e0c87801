"""Processes that a measurement starts, what they use, and their end whatever happens."""
import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
STARTED = []


def end_all():
    """Kills what still runs of what was started here, with its children."""
    for process in STARTED:
        if process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                process.wait(5)


def end_well():
    """Ctrl-C and SIGTERM end the measurement, and everything that it started."""
    atexit.register(end_all)

    def stop(number, _frame):
        sys.exit(128 + number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


def start(command, **options):
    """A child with a process group of its own."""
    options.setdefault("stdin", subprocess.DEVNULL)
    process = subprocess.Popen([str(word) for word in command], start_new_session=True, **options)
    STARTED.append(process)
    return process


def stop(process, number=signal.SIGINT, patience=60):
    """Ends a child; its exit code. One that does not listen is killed, and that is an error."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise RuntimeError(f"{process.args[0]} did not end within {patience} s of signal {number}") from None


class Lines:
    """What a child prints, line by line, without ever blocking it."""

    def __init__(self, stream, each=None):
        """`each` is called with every line, which then is not kept."""
        self.lines, self.each = [], each
        self.changed = threading.Condition()
        self.ended = False
        self.thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self.thread.start()

    def _read(self, stream):
        for line in stream:
            if self.each:
                self.each(line)
                continue
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait_for(self, wanted, patience, what):
        """The first line that satisfies the condition."""
        until, seen = time.monotonic() + patience, 0
        with self.changed:
            while True:
                for line in self.lines[seen:]:
                    if wanted(line):
                        return line
                seen = len(self.lines)
                if self.ended:
                    raise RuntimeError(f"{what}: it ended before: {self.text()[-600:]}")
                left = until - time.monotonic()
                if left <= 0:
                    raise RuntimeError(f"{what}: nothing in {patience} s; so far: {self.text()[-600:]}")
                self.changed.wait(left)

    def finish(self, patience=60):
        self.thread.join(patience)
        return self.lines

    def text(self):
        return "".join(self.lines)


def cpu_nanos(pid):
    """CPU time of all threads that live, to the nanosecond."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def thread_seconds(pid, name):
    """CPU time of the threads of that name."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/comm") as file:
            if file.read().strip() == name:
                with open(f"/proc/{pid}/task/{task}/schedstat") as times:
                    total += int(times.read().split()[0])
    return total / 1e9


def cpu_split(pid):
    """User and system time in seconds, to a hundredth."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) / TICK, int(fields[12]) / TICK


class Usage:
    """CPU time of a process from here on, split into user and system."""

    def __init__(self, pid):
        self.pid, self.nanos, self.split, self.at = pid, cpu_nanos(pid), cpu_split(pid), time.monotonic()

    def so_far(self):
        nanos = cpu_nanos(self.pid) - self.nanos
        user, system = (now - then for now, then in zip(cpu_split(self.pid), self.split))
        # Ticks are coarse, their proportion is what they are good for.
        share = user / (user + system) if user + system > 0 else 0.5
        return {"seconds": time.monotonic() - self.at, "cpu_s": nanos / 1e9,
                "user_s": nanos * share / 1e9, "system_s": nanos * (1 - share) / 1e9}


def resident(pid):
    """Bytes of memory that a process has."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE


def anonymous(pid):
    """The same without what is mapped: programs, and the rings, which the kernel maps twice."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))
