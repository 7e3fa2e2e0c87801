"""Simulated hosts: each has an agent, a hostname, a copy of the simulated driver and its own programs."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 60
LOOPBACK = "http://127.0.0.1"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait(what, check, timeout=TIMEOUT_SECONDS):
    """Polls `check` until it returns something true, and returns that."""
    end = time.monotonic() + timeout
    while True:
        try:
            found = check()
            if found:
                return found
        except (OSError, urllib.error.URLError, StopIteration, KeyError, IndexError):
            pass
        if time.monotonic() > end:
            sys.exit(f"timeout waiting for {what}")
        time.sleep(0.1)


def fetch(url, token=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as response:
        return response.read().decode()


class Host:
    """An agent in its own UTS namespace, with this hostname."""

    def __init__(self, name, directory, vramscope, sim, config, port=None):
        self.name, self.directory = name, pathlib.Path(directory) / name
        self.sim, self.oracle_dir = self.directory / "sim", self.directory / "oracle"
        self.oracle_dir.mkdir(parents=True)
        shutil.copytree(sim, self.sim)
        (self.directory / "vramscope.toml").write_text(config)
        self.port, self.programs = port or free_port(), []
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(self.sim), "SIM_ORACLE_DIR": str(self.oracle_dir),
                            "SIM_STATE_FILE": str(self.directory / "devices"), "SIM_CONTEXT_OVERHEAD": "100M"}
        agent = [vramscope, "serve", "--listen", f"127.0.0.1:{self.port}", "--driver", str(self.sim / "libcuda.so.1"),
                 "--state-dir", str(self.directory / "state"), "--config", str(self.directory / "vramscope.toml")]
        with open(self.directory / "agent.log", "w") as log:
            self.agent = subprocess.Popen(["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name, *agent],
                                          env=self.environment, stdout=log, stderr=log)
        wait(f"the agent of {name}", lambda: self.get("/readyz").strip() == "ready")

    def url(self, path):
        return f"{LOOPBACK}:{self.port}{path}"

    def get(self, path):
        text = fetch(self.url(path))
        return json.loads(text) if path.startswith("/api") else text

    def start(self, *arguments):
        """Starts a workload that holds its memory at the end, and returns its pid."""
        words = [str(self.sim / "workload"), "--hold-ms", "1000000", *arguments]
        program = subprocess.Popen(words, env=self.environment, stdout=subprocess.DEVNULL)
        self.programs.append(program)
        return program.pid

    def process(self, pid):
        return next(one for one in self.get("/api/v1/processes")["processes"] if one["pid"] == pid)

    def settle(self, pid):
        """Waits until a process only holds memory, and returns it as the agent reports it."""
        seen = [None]

        def steady():
            now = self.process(pid)
            values = (now["live_bytes"], now["allocations_total"], now["frees_total"])
            before, seen[0] = seen[0], values
            time.sleep(2)
            return now["allocations_total"] and before == values and now
        return wait("a process that only holds", steady)

    def end_programs(self):
        """Ends the programs and returns the oracle of each."""
        for program in self.programs:
            program.send_signal(signal.SIGTERM)
            program.wait()
        return {program.pid: json.loads((self.oracle_dir / f"{program.pid}.json").read_text()) for program in self.programs}

    def end(self):
        """Ends the agent cleanly and returns its log."""
        self.agent.send_signal(signal.SIGTERM)
        self.agent.wait(30)
        return (self.directory / "agent.log").read_text()


class Checks:
    """Prints the result of each check and counts failures."""

    def __init__(self):
        self.wrong = 0

    def equal(self, what, ours, expected):
        same = ours == expected
        self.wrong += not same
        print(f"{'ok   ' if same else 'WRONG'} {what}: {expected}" + ("" if same else f", found {ours}"))

    def end(self):
        print(f"wrong: {self.wrong}")
        sys.exit(1 if self.wrong else 0)
