"""Agents that stand for hosts, each with a name, a copy of the simulated driver and programs of its own."""
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

PATIENCE = 60
LOOPBACK = "http://127.0.0.1"


def free_port():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


def wait(what, check, patience=PATIENCE):
    """What `check` finds, as soon as it finds something."""
    end = time.monotonic() + patience
    while True:
        try:
            found = check()
            if found:
                return found
        except (OSError, urllib.error.URLError, StopIteration, KeyError, IndexError):
            pass
        if time.monotonic() > end:
            sys.exit(f"{what} never came")
        time.sleep(0.1)


def fetch(url, token=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return answer.read().decode()


class Host:
    """A host: an agent that believes to be alone on a machine of this name."""

    def __init__(self, name, folder, vramscope, sim, settings, port=None):
        self.name, self.folder = name, pathlib.Path(folder) / name
        self.sim, self.truth = self.folder / "sim", self.folder / "truth"
        self.truth.mkdir(parents=True)
        shutil.copytree(sim, self.sim)
        (self.folder / "settings.toml").write_text(settings)
        self.port, self.players = port or free_port(), []
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(self.sim), "SIM_ORACLE_DIR": str(self.truth),
                            "SIM_STATE_FILE": str(self.folder / "devices"), "SIM_CONTEXT_OVERHEAD": "100M"}
        agent = [vramscope, "serve", "--listen", f"127.0.0.1:{self.port}", "--driver", str(self.sim / "libcuda.so.1"),
                 "--state-dir", str(self.folder / "state"), "--config", str(self.folder / "settings.toml")]
        with open(self.folder / "agent.log", "w") as log:
            self.agent = subprocess.Popen(["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name, *agent],
                                          env=self.environment, stdout=log, stderr=log)
        wait(f"the agent of {name}", lambda: self.get("/readyz").strip() == "ready")

    def url(self, path):
        return f"{LOOPBACK}:{self.port}{path}"

    def get(self, path):
        text = fetch(self.url(path))
        return json.loads(text) if path.startswith("/api") else text

    def start(self, *arguments):
        """A workload that holds what it leaves; its pid."""
        words = [str(self.sim / "workload"), "--hold-ms", "1000000", *arguments]
        player = subprocess.Popen(words, env=self.environment, stdout=subprocess.DEVNULL)
        self.players.append(player)
        return player.pid

    def process(self, pid):
        return next(one for one in self.get("/api/v1/processes")["processes"] if one["pid"] == pid)

    def settle(self, pid):
        """The process as the agent sees it when nothing changes any more."""
        seen = [None]

        def steady():
            now = self.process(pid)
            figures = (now["live_bytes"], now["allocations_total"], now["frees_total"])
            before, seen[0] = seen[0], figures
            time.sleep(2)
            return now["allocations_total"] and before == figures and now
        return wait("a process that only holds", steady)

    def end_players(self):
        """Ends the programs; what the driver itself says of each."""
        for player in self.players:
            player.send_signal(signal.SIGTERM)
            player.wait()
        return {player.pid: json.loads((self.truth / f"{player.pid}.json").read_text()) for player in self.players}

    def end(self):
        """Ends the agent in good order; what it told."""
        self.agent.send_signal(signal.SIGTERM)
        self.agent.wait(30)
        return (self.folder / "agent.log").read_text()


class Verdict:
    """What was looked at, and how often it was wrong."""

    def __init__(self):
        self.wrong = 0

    def look(self, what, ours, theirs):
        same = ours == theirs
        self.wrong += not same
        print(f"{'ok   ' if same else 'WRONG'} {what}: {theirs}" + ("" if same else f", and not {ours}"))

    def end(self):
        print(f"wrong: {self.wrong}")
        sys.exit(1 if self.wrong else 0)
