"""Runs a program under vramscope and collects the reports, the output and the account of the program."""
import glob
import json
import os
import re
import shlex
import subprocess
import sys

from lib.machine import scrub
from lib.processes import ExperimentError, run_to_end


def first_lines(text, lines=34):
    found = text.rstrip().splitlines()
    return "\n".join(found[:lines] + (["…"] if len(found) > lines else []))


class TraceRunner:
    """Runs programs under a tracer, on one driver, with output files in a scratch directory."""

    def __init__(self, vramscope, driver, simulator, directory, timeout):
        self.vramscope, self.driver, self.simulator = vramscope, driver, simulator
        self.directory, self.timeout = directory, timeout

    def environment(self, more, oracle_dir):
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **more}
        if self.driver == "simulated":
            environment.update(LD_LIBRARY_PATH=self.simulator, SIM_ORACLE_DIR=oracle_dir)
        return environment

    def program(self, words):
        """Returns the command of a program on this driver: as it is run, and as the page shows it."""
        if self.driver == "simulated":
            return [os.path.join(self.simulator, "workload"), *words], ["workload", *words]
        if os.path.isabs(words[0]):
            return list(words), [os.path.basename(words[0]), *words[1:]]
        script = os.path.join("experiments", "published", "workloads", words[0] + ".py")
        return [sys.executable, script, *words[1:]], ["python3", script, *words[1:]]

    def trace(self, name, words, verb="trace", options=(), environment=None, sampled=False, record=True):
        """Runs a program under the tracer."""
        directory = os.path.join(self.directory, name)
        oracle_dir = os.path.join(directory, "oracle")
        os.makedirs(oracle_dir, exist_ok=True)
        reports, recording = os.path.join(directory, "reports.jsonl"), os.path.join(directory, "run.arrows")
        real, shown = self.program(words)
        arguments = [verb, "--json", *options, "-o"]
        record_to = ["--record", recording] if record else []
        done = run_to_end([self.vramscope, *arguments, reports, *record_to, "--force", "--", *real],
                          self.environment(environment or {}, oracle_dir), self.timeout, sampled)
        if done.code != 0:
            raise ExperimentError(f"exit {done.code}: {' '.join(done.stderr[-5:])[-600:]}")
        with open(reports) as lines:
            parsed = [json.loads(line) for line in lines]
        command = ["vramscope", *arguments, "reports.jsonl", *(["--record", "run.arrows"] if record else []), "--", *shown]
        prefix = "".join(f"{key}={value} " for key, value in (environment or {}).items())
        return {
            "command": prefix + shlex.join(command),
            "done": done,
            "reports": parsed,
            "oracle": self._oracle(oracle_dir),
            "accounts": self._accounts(done.stdout),
            "recording": recording if record else None,
        }

    @staticmethod
    def _oracle(directory):
        """Returns the accounts of the simulated driver, by process."""
        found = {}
        for path in glob.glob(os.path.join(directory, "*.json")):
            with open(path) as file:
                account = json.load(file)
            found[account["pid"]] = account
        return found

    @staticmethod
    def _accounts(lines):
        """Returns the accounts that the programs printed, by process."""
        printed = next((json.loads(line) for line in reversed(lines) if line.startswith("{")), None)
        if printed is None:
            return {}
        return {account.get("pid", 0): account for account in printed.get("processes", [printed])}

    def live(self, name, words, environment):
        """Returns a text report of a running program, and the command that prints it."""
        directory = os.path.join(self.directory, name + "-live")
        os.makedirs(directory)
        file = os.path.join(directory, "reports.txt")
        real, shown = self.program(words)
        arguments = ["trace", "--allocations", "--interval", "1s", "--top", "3"]
        done = run_to_end([self.vramscope, *arguments, "-o", file, "--", *real],
                          self.environment(environment, directory), self.timeout)
        if done.code != 0:
            raise ExperimentError(f"exit {done.code}: {' '.join(done.stderr[-5:])[-600:]}")
        with open(file) as text:
            reports = re.split(r"^(?=-{20} )", scrub(text.read()), flags=re.MULTILINE)
        running = [report for report in reports if "PID: " in report and "(exited)" not in report]
        if not running:
            raise ExperimentError("no report was printed while the program ran")
        prefix = "".join(f"{key}={value} " for key, value in environment.items())
        return {"command": prefix + shlex.join(["vramscope", *arguments, "--", *shown]), "text": first_lines(running[-1])}

    def text(self, recording):
        """Returns the last report of a recording as text."""
        done = subprocess.run(
            [self.vramscope, "replay", "--allocations", "--top", "3", "--stack-depth", "5", recording],
            capture_output=True, text=True, timeout=60, check=False)
        return first_lines(scrub(done.stdout))

    def plot(self, recording, chart, title, by):
        done = subprocess.run(
            [self.vramscope, "plot", recording, "-o", chart, "--force", "--by", by, "--title", title],
            capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise ExperimentError(f"cannot plot: {done.stderr.strip()}")
        os.chmod(chart, 0o644)
