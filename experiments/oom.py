#!/usr/bin/env python3
"""Runs out of memory on purpose, and compares what the agent wrote down with what programs held.

usage: oom.py --vramscope PATH --driver real
       oom.py --vramscope PATH --driver FOLDER-OF-THE-SIMULATED-DRIVER

four    four processes share the card: three hold known sizes, the fourth allocates until it is refused
large   a process asks for more than the whole card
torch   PyTorch allocates tensors until it is refused; truth is torch.cuda.memory_reserved()
pieces  the same with a cache in pieces: the cause has to be the cache
again   a cache that gives back enough when it is refused: the program goes on (recovered)

The last three need a GPU and PyTorch, and are left out elsewhere. Needs root. Ends within 3 minutes, and
ends everything that it started. Exit code 0 when all is as it should be.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

LIMIT = 170
MIB = 1 << 20
GIB = 1 << 30
OUT_OF_MEMORY = 2


class Driver:
    """The few calls that are needed, on whichever driver there is."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.check(self.cuda.cuInit(0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self.check(self.cuda.cuCtxSetCurrent(context))

    @staticmethod
    def check(code):
        if code != 0:
            sys.exit(f"the driver answered {code}")

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        return self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))

    def free(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value


def tell(**facts):
    print(json.dumps({"pid": os.getpid(), **facts}), flush=True)


def stay():
    """Waits with everything live until the parent is done."""
    sys.stdin.readline()


def play_nothing():
    Driver()


def play_hold(size):
    driver = Driver()
    chunk = int(size) // 8 // (2 * MIB) * 2 * MIB
    for _ in range(8):
        driver.check(driver.allocate(chunk))
    tell(held=8 * chunk)
    stay()


def play_fill(chunk):
    driver, held = Driver(), 0
    while (code := driver.allocate(int(chunk))) == 0:
        held += int(chunk)
    tell(held=held, code=code, asked=int(chunk), error_at=time.monotonic_ns())
    stay()


def play_large():
    driver = Driver()
    _, total = driver.free()
    code = driver.allocate(total + GIB)
    tell(held=0, code=code, asked=total + GIB, error_at=time.monotonic_ns())
    stay()


def refused(torch, kept, size):
    """Asks for more until PyTorch says no; when that was."""
    try:
        while True:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        return time.monotonic_ns()


def play_torch():
    import torch

    kept, size = [], 4 * GIB
    at = refused(torch, kept, size)
    tell(held=torch.cuda.memory_reserved(), asked=size, error_at=at)
    stay()


def play_pieces():
    import torch

    free, _ = torch.cuda.mem_get_info()
    big = torch.empty(free - 10 * GIB, dtype=torch.uint8, device="cuda")
    kept = []
    refused(torch, kept, 9 * MIB)
    # Two of these share a segment: every second one goes, and no segment is empty.
    kept = kept[::2]
    time.sleep(7)  # what comes now is an incident of its own
    at = refused(torch, kept, 2 * GIB)
    tell(held=torch.cuda.memory_reserved(), asked=2 * GIB, error_at=at, big=big.numel())
    stay()


def play_again():
    import torch

    kept = []
    free, _ = torch.cuda.mem_get_info()
    for _ in range(free // GIB - 2):
        kept.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
    del kept[::2]
    kept.append(torch.empty(8 * GIB, dtype=torch.uint8, device="cuda"))
    tell(held=None, asked=8 * GIB, error_at=time.monotonic_ns())
    stay()


class Stage:
    """An agent, and programs that run under its eyes."""

    def __init__(self, options, folder, stack):
        self.stack, self.folder = stack, pathlib.Path(folder)
        self.environment = dict(os.environ)
        self.messages = self.folder / "messages"
        if options.driver != "real":
            self.environment["LD_LIBRARY_PATH"] = options.driver
            self.environment["SIM_STATE_FILE"] = str(self.folder / "devices")
            self.environment["SIM_MEMORY"] = "16G"
            # The first process makes the devices, which the agent asks for when it starts.
            subprocess.run([sys.executable, __file__, "--play", "nothing"], env=self.environment, check=True)
        settings = self.folder / "vramscope.toml"
        settings.write_text(
            '[incidents]\ncooldown = "5s"\nretention_count = 50\n[trace]\ntorch = "totals"\n', encoding="utf-8"
        )
        command = [options.vramscope, "serve", "--listen", "127.0.0.1:0", "--config", str(settings)]
        command += ["--state-dir", str(self.folder / "state")]
        if options.driver != "real":
            command += ["--driver", os.path.join(options.driver, "libcuda.so.1")]
        with open(self.messages, "w", encoding="utf-8") as messages:
            self.agent = subprocess.Popen(command, env=self.environment, stderr=messages)
        stack.callback(self.end, self.agent)
        self.wait(lambda: "attached to" in self.messages.read_text(encoding="utf-8"), "the agent")

    @staticmethod
    def end(process):
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait(self, condition, what, patience=60):
        deadline = time.monotonic() + patience
        while not (found := condition()):
            if time.monotonic() > deadline:
                sys.exit(f"{what} never came; the agent said:\n{self.messages.read_text()}")
            time.sleep(0.002)
        return found

    def play(self, *arguments):
        """Starts a part of this file as a program; gives it and what it tells."""
        process = subprocess.Popen(
            [sys.executable, __file__, "--play", *map(str, arguments)],
            env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self.stack.callback(self.end, process)
        return process

    def told(self, process):
        line = process.stdout.readline()
        if not line:
            sys.exit(f"a program ended early; the agent said:\n{self.messages.read_text()}")
        return json.loads(line)

    def folders(self):
        root = self.folder / "state" / "incidents"
        names = sorted(root.iterdir()) if root.is_dir() else []
        return [name for name in names if not name.name.startswith(".")]

    def incident(self, pid, number=1):
        """The folder of a process, its object, and when it was seen to be there."""
        def own():
            found = [name for name in self.folders() if name.name.endswith(f"-pid{pid}")]
            return found[number - 1] if len(found) >= number else None
        folder = self.wait(own, f"a folder of process {pid}")
        seen = time.monotonic_ns()
        self.wait(lambda: self.read(folder)["html_report"] != "pending", "the page")
        return folder, self.read(folder), seen

    @staticmethod
    def read(folder):
        return json.loads((folder / "incident.json").read_text(encoding="utf-8"))


def holders(found):
    """Who held traced memory. Who has a context and nothing in it is told by the driver's account."""
    return {holder["pid"]: holder["live_bytes"] for holder in found["holders"] if holder["live_bytes"]}


def compare(name, found, seen, truth, facts, cause):
    """One line of the result; whether all is as it should be."""
    wrong = []
    if truth is not None and holders(found) != truth:
        wrong.append(f"holders {holders(found)}, truth {truth}")
    if found["cause"]["name"] not in cause:
        wrong.append(f"cause {found['cause']['name']}, expected {' or '.join(cause)}")
    if facts["asked"] != found["requested_bytes"] and found["requester"]["pid"] == facts["pid"]:
        # PyTorch rounds requests up to 2 MiB.
        if abs(found["requested_bytes"] - facts["asked"]) > 2 * MIB:
            wrong.append(f"requested {found['requested_bytes']}, truth {facts['asked']}")
    if found["written_after_ms"] >= 1000:
        wrong.append(f"{found['written_after_ms']} ms is too long")
    if found["html_report"] != "written":
        wrong.append(f"html_report: {found['html_report']}")
    # The folder may be there before the program has told when it was refused.
    after = max(0, seen - facts["error_at"]) / 1e6
    print(json.dumps({
        "case": name, "ok": not wrong, "wrong": wrong, "cause": found["cause"]["name"],
        "confidence": found["cause"]["confidence"], "summary": found["cause"]["summary"],
        "written_after_ms": found["written_after_ms"], "seen_after_program_told_ms": round(after, 1),
        "holders": len(found["holders"]), "oom_count": found["oom_count"], "recovered": found["recovered"],
    }), flush=True)
    return not wrong


def four(stage):
    with contextlib.ExitStack() as own:
        own.callback(setattr, stage, "stack", stage.stack)
        stage.stack = own
        free, _ = Driver().free() if stage.environment.get("SIM_STATE_FILE") is None else (15 * GIB, 0)
        parts = [free * share // 100 for share in (20, 15, 10)]
        others = [stage.play("hold", part) for part in parts]
        truth = {facts["pid"]: facts["held"] for facts in map(stage.told, others)}
        facts = stage.told(stage.play("fill", 256 * MIB))
        truth[facts["pid"]] = facts["held"]
        _, found, seen = stage.incident(facts["pid"])
        good = facts["code"] == OUT_OF_MEMORY
        return compare("four", found, seen, truth, facts, ["device_exhausted"]) and good


def alone(stage, name, cause, truth=True, number=1):
    with contextlib.ExitStack() as own:
        own.callback(setattr, stage, "stack", stage.stack)
        stage.stack = own
        facts = stage.told(stage.play(name))
        _, found, seen = stage.incident(facts["pid"], number)
        held = {facts["pid"]: facts["held"]} if facts["held"] else {}
        good = compare(name, found, seen, held if truth else None, facts, cause)
        if name == "again":
            stage.wait(lambda: stage.read(stage.folders()[-1])["recovered"], "the update", 20)
            print(json.dumps({"case": "again", "recovered": True}))
        return good


def has_torch():
    ask = "import torch; assert torch.cuda.is_available()"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, check=False)
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vramscope", default="vramscope")
    parser.add_argument("--driver", default="real", help="real, or the folder of a simulated one")
    parser.add_argument("--play", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        globals()[f"play_{options.play[0]}"](*options.play[1:])
        return
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"it took more than {LIMIT} seconds"))
    signal.alarm(LIMIT)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stage = Stage(options, folder, stack)
        results = [four(stage), alone(stage, "large", ["request_exceeds_device"])]
        if options.driver == "real" and has_torch():
            results.append(alone(stage, "torch", ["device_exhausted"]))
            results.append(alone(stage, "pieces", ["cache_fragmentation"], number=2))
            results.append(alone(stage, "again", ["cache_fragmentation"], truth=False))
        else:
            print("no GPU with PyTorch: torch, pieces and again are left out", file=sys.stderr)
        summary = stage.folders()[0] / "summary.txt"
        print(summary.read_text(encoding="utf-8"), file=sys.stderr)
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
