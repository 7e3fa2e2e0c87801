"""Child processes of a measurement: starting them, reading their output, their CPU time and memory, ending them."""
import atexit
import collections
import contextlib
import glob
import os
import shlex
import signal
import subprocess
import sys
import threading
import time

from lib.paths import ROOT

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Seconds between two samples of the tracer's CPU time and memory in `run_to_end`.
SAMPLE_INTERVAL = 0.2
STARTED = []

Finished = collections.namedtuple("Finished", "code stdout stderr samples seconds")


class ExperimentError(Exception):
    """An experiment could not run; the message says why."""


def _session_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[3])
    except (OSError, ValueError, IndexError):
        return None


def kill_session(session):
    """Kills every process of a session: a child that was started here, and all of its descendants."""
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        if _session_of(pid) == session:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def kill_started():
    """Kills the children that still run, with their descendants."""
    for process in STARTED:
        if process.poll() is None:
            kill_session(process.pid)
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                process.wait(5)


def kill_children_at_exit():
    """Makes Ctrl-C and SIGTERM end the measurement and everything that it started."""
    atexit.register(kill_started)

    def exit_by_signal(number, _frame):
        sys.exit(128 + number)

    signal.signal(signal.SIGINT, exit_by_signal)
    signal.signal(signal.SIGTERM, exit_by_signal)


def start(command, **options):
    """Starts a child in its own session."""
    options.setdefault("stdin", subprocess.DEVNULL)
    process = subprocess.Popen([str(word) for word in command], start_new_session=True, **options)
    STARTED.append(process)
    return process


def stop(process, number=signal.SIGINT, timeout=60):
    """Ends a child by a signal and returns its exit code. It is killed after the timeout, which is an error."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise RuntimeError(f"{process.args[0]} did not exit within {timeout} s of signal {number}") from None


class Lines:
    """The output of a child, line by line; reading it never blocks the child."""

    def __init__(self, stream, callback=None):
        """`callback` is called with every complete line, which is then not stored."""
        self.lines, self.callback = [], callback
        self.changed = threading.Condition()
        self.ended = False
        self.thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self.thread.start()

    def _read(self, stream):
        for line in stream:
            if self.callback:
                # The last line of a child that was killed may be incomplete.
                if line.endswith("\n"):
                    self.callback(line)
                continue
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait_for(self, matches, timeout, what):
        """Returns the first line that matches."""
        until, checked = time.monotonic() + timeout, 0
        with self.changed:
            while True:
                for line in self.lines[checked:]:
                    if matches(line):
                        return line
                checked = len(self.lines)
                if self.ended:
                    raise RuntimeError(f"{what}: the output ended before: {self.text()[-600:]}")
                left = until - time.monotonic()
                if left <= 0:
                    raise RuntimeError(f"{what}: no such line within {timeout} s; output so far: {self.text()[-600:]}")
                self.changed.wait(left)

    def finish(self, timeout=60):
        self.thread.join(timeout)
        return self.lines

    def text(self):
        return "".join(self.lines)


def wait_attached(lines):
    """Waits until a tracer or an agent reports on standard error that its probes are attached."""
    # Attaching every function separately takes long on a busy machine.
    return lines.wait_for(lambda line: "attached to" in line, 300, "the probes of vramscope")


def run_to_end(command, environment, timeout, sampled=False):
    """Runs a command to its end, with its output and duration.

    With `sampled`, its program waits for a line, and the command's CPU time and memory are sampled from then on until
    the program prints its results.
    """
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE if sampled else subprocess.DEVNULL, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    output = {"stdout": [], "stderr": []}

    def read(name):
        for line in getattr(process, name):
            output[name].append(line.rstrip("\n"))

    readers = [threading.Thread(target=read, args=(name,), daemon=True) for name in output]
    for reader in readers:
        reader.start()
    begin, released, samples = time.monotonic(), False, []
    try:
        while process.poll() is None:
            if time.monotonic() - begin > timeout:
                raise ExperimentError(f"took longer than {timeout} s: {shlex.join(command)}")
            if sampled and not released and "ready" in output["stdout"]:
                released = True
                process.stdin.write("\n")
                process.stdin.flush()
            if released and len(output["stdout"]) < 2:
                with contextlib.suppress(OSError):
                    samples.append((time.monotonic(), cpu_nanos(process.pid) / 1e9, resident_bytes(process.pid)))
                time.sleep(SAMPLE_INTERVAL)
            else:
                time.sleep(0.02)
    finally:
        _end_session(process)
    for reader in readers:
        reader.join(5)
    return Finished(process.returncode, output["stdout"], output["stderr"], samples, time.monotonic() - begin)


def _end_session(process):
    """Interrupts a child, and kills the rest of its session after 3 seconds."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
    kill_session(process.pid)
    process.wait()


def other_tracers():
    """Returns the number of vramscope processes on this machine: their probes in the same functions also cost time."""
    found = 0
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            with open(path) as file:
                found += file.read().strip() == "vramscope"
        except OSError:
            continue
    return found


def cpu_nanos(pid):
    """Returns the CPU time of all live threads, in nanoseconds."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def thread_cpu_seconds(pid, name):
    """Returns the CPU time of the threads with a name."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/comm") as file:
            if file.read().strip() == name:
                with open(f"/proc/{pid}/task/{task}/schedstat") as times:
                    total += int(times.read().split()[0])
    return total / 1e9


def user_and_system_seconds(pid):
    """Returns user and system time, with a resolution of a hundredth of a second."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) / TICKS_PER_SECOND, int(fields[12]) / TICKS_PER_SECOND


class Usage:
    """CPU time of a process since this object was created, split into user and system time."""

    def __init__(self, pid):
        self.pid, self.nanos, self.split = pid, cpu_nanos(pid), user_and_system_seconds(pid)
        self.at = time.monotonic()

    def so_far(self):
        nanos = cpu_nanos(self.pid) - self.nanos
        user, system = (now - then for now, then in zip(user_and_system_seconds(self.pid), self.split))
        # Ticks are coarse: only their ratio is used.
        share = user / (user + system) if user + system > 0 else 0.5
        return {"seconds": time.monotonic() - self.at, "cpu_s": nanos / 1e9,
                "user_s": nanos * share / 1e9, "system_s": nanos * (1 - share) / 1e9}


def resident_bytes(pid):
    """Returns the resident memory of a process."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def private_bytes(pid):
    """Returns the anonymous resident memory of a process.

    That excludes mapped files and the ring buffers, which the kernel maps twice.
    """
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))
