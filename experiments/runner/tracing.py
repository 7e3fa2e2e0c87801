"""Runs a program under vramscope, with a limit of time, and gathers what both said."""
import collections
import glob
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

from runner.machine import ROOT, scrub

# How often the tracer's own cost is looked at, in seconds.
SAMPLE = 0.2

Done = collections.namedtuple("Done", "code stdout stderr samples seconds")


class Trouble(Exception):
    """An experiment could not be made; the message says why."""


def _session_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[3])
    except (OSError, ValueError, IndexError):
        return None


def stop(process):
    """Ends a process and all that it started: they are the ones of its session."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            pass
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for pid in (pid for pid in pids if _session_of(pid) == process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def other_tracers():
    """How many other vramscopes run on this machine: their probes are in the same functions, and cost too."""
    found = 0
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            with open(path) as file:
                found += file.read().strip() == "vramscope"
        except OSError:
            continue
    return found


def cost_of(pid):
    """CPU time in seconds of all threads of a process, and its resident bytes."""
    nanoseconds = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(path) as file:
                nanoseconds += int(file.read().split()[0])
        except (OSError, IndexError, ValueError):
            continue
    try:
        with open(f"/proc/{pid}/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        resident = 0
    return nanoseconds / 1e9, resident


def run(command, environment, limit, sampled=False):
    """Runs a command. With `sampled`, its program waits for a line, and the command's cost is told from then on
    to the moment at which the program says what it did.
    """
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE if sampled else subprocess.DEVNULL, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    lines = {"stdout": [], "stderr": []}

    def read(name):
        for line in getattr(process, name):
            lines[name].append((time.monotonic(), line.rstrip("\n")))

    readers = [threading.Thread(target=read, args=(name,), daemon=True) for name in lines]
    for reader in readers:
        reader.start()
    begin, go, samples = time.monotonic(), None, []
    try:
        while process.poll() is None:
            if time.monotonic() - begin > limit:
                stop(process)
                raise Trouble(f"took longer than {limit} s: {shlex.join(command)}")
            if sampled and go is None and any(line == "ready" for _, line in lines["stdout"]):
                go = time.monotonic()
                process.stdin.write("\n")
                process.stdin.flush()
            if go is not None and len(lines["stdout"]) < 2:
                samples.append((time.monotonic(), *cost_of(process.pid)))
                time.sleep(SAMPLE)
            else:
                time.sleep(0.02)
    finally:
        stop(process)
    for reader in readers:
        reader.join(5)
    texts = [[line for _, line in lines[name]] for name in ("stdout", "stderr")]
    return Done(process.returncode, *texts, samples, time.monotonic() - begin)


def shorten(text, lines=34):
    found = text.rstrip().splitlines()
    return "\n".join(found[:lines] + (["…"] if len(found) > lines else []))


class Bench:
    """Where experiments are made: a tracer, a driver, a folder for what they leave."""

    def __init__(self, vramscope, driver, simulator, folder, limit):
        self.vramscope, self.driver, self.simulator = vramscope, driver, simulator
        self.folder, self.limit = folder, limit

    def environment(self, more, truth):
        found = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **more}
        if self.driver == "simulated":
            found.update(LD_LIBRARY_PATH=self.simulator, SIM_ORACLE_DIR=truth)
        return found

    def program(self, words):
        """The words of a program on this driver, as they are run and as they are written."""
        if self.driver == "simulated":
            return [os.path.join(self.simulator, "workload"), *words], ["workload", *words]
        if os.path.isabs(words[0]):
            return list(words), [os.path.basename(words[0]), *words[1:]]
        script = os.path.join("experiments", "workloads", words[0] + ".py")
        return [sys.executable, script, *words[1:]], ["python3", script, *words[1:]]

    def trace(self, name, words, verb="trace", options=(), environment=None, sampled=False, record=True):
        """Runs a program under the tracer."""
        place = os.path.join(self.folder, name)
        truth = os.path.join(place, "truth")
        os.makedirs(truth, exist_ok=True)
        reports, recording = os.path.join(place, "reports.jsonl"), os.path.join(place, "run.arrows")
        real, written = self.program(words)
        told = [verb, "--json", *options, "-o"]
        keep = ["--record", recording] if record else []
        done = run([self.vramscope, *told, reports, *keep, "--force", "--", *real], self.environment(environment or {}, truth),
                   self.limit, sampled)
        if done.code != 0:
            raise Trouble(f"exit {done.code}: {' '.join(done.stderr[-5:])[-600:]}")
        with open(reports) as lines:
            found = [json.loads(line) for line in lines]
        shown = ["vramscope", *told, "reports.jsonl", *(["--record", "run.arrows"] if record else []), "--", *written]
        prefix = "".join(f"{key}={value} " for key, value in (environment or {}).items())
        return {
            "command": prefix + shlex.join(shown),
            "done": done,
            "reports": found,
            "truth": self._truth(truth),
            "accounts": self._accounts(done.stdout),
            "recording": recording if record else None,
        }

    @staticmethod
    def _truth(folder):
        found = {}
        for path in glob.glob(os.path.join(folder, "*.json")):
            with open(path) as file:
                account = json.load(file)
            found[account["pid"]] = account
        return found

    @staticmethod
    def _accounts(lines):
        """What the programs said of themselves, by process."""
        told = next((json.loads(line) for line in reversed(lines) if line.startswith("{")), None)
        if told is None:
            return {}
        return {account.get("pid", 0): account for account in told.get("processes", [told])}

    def live(self, name, words, environment):
        """A report of a program that still runs, as people read it; and how to get it."""
        place = os.path.join(self.folder, name + "-live")
        os.makedirs(place)
        file = os.path.join(place, "reports.txt")
        real, written = self.program(words)
        told = ["trace", "--interval", "1s", "--top", "3"]
        done = run([self.vramscope, *told, "-o", file, "--", *real], self.environment(environment, place), self.limit)
        if done.code != 0:
            raise Trouble(f"exit {done.code}: {' '.join(done.stderr[-5:])[-600:]}")
        with open(file) as text:
            reports = re.split(r"^(?=-{20} )", scrub(text.read()), flags=re.MULTILINE)
        running = [report for report in reports if "PID: " in report and "(exited)" not in report]
        if not running:
            raise Trouble("no report came while the program ran")
        prefix = "".join(f"{key}={value} " for key, value in environment.items())
        return {"command": prefix + shlex.join(["vramscope", *told, "--", *written]), "text": shorten(running[-1])}

    def text(self, recording):
        """The last report of a recording, as people read it."""
        done = subprocess.run(
            [self.vramscope, "replay", "--top", "3", "--stack-depth", "5", recording],
            capture_output=True, text=True, timeout=60, check=False)
        return shorten(scrub(done.stdout))

    def plot(self, recording, picture, title, by):
        done = subprocess.run(
            [self.vramscope, "plot", recording, "-o", picture, "--force", "--by", by, "--title", title],
            capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise Trouble(f"cannot plot: {done.stderr.strip()}")
        os.chmod(picture, 0o644)
