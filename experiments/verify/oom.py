#!/usr/bin/env python3
"""Runs out of memory on purpose and compares the agent's incidents with the memory that programs held.

usage: oom.py --vramscope PATH --driver real
       oom.py --vramscope PATH --driver DIRECTORY-OF-THE-SIMULATED-DRIVER

four        four processes share the device: three hold known sizes, the fourth allocates until a call fails
large       a process requests more than the whole device
torch       PyTorch allocates tensors until a call fails; torch.cuda.memory_reserved() is expected
fragmented  the same with a fragmented cache, which must be the cause
recovered   PyTorch frees enough of its cache when a call fails, and the program continues

The last three need a GPU and PyTorch, and are skipped elsewhere. Needs root. Takes at most 3 minutes, and ends
everything that it started. Exits with 0 if all incidents are right.
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

TIMEOUT_SECONDS = 170
MIB = 1 << 20
GIB = 1 << 30
OUT_OF_MEMORY = 2


class Driver:
    """The driver calls that are needed, on the real or the simulated driver."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.check(self.cuda.cuInit(0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self.check(self.cuda.cuCtxSetCurrent(context))

    @staticmethod
    def check(code):
        if code != 0:
            sys.exit(f"the driver returned {code}")

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        return self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))

    def free(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value


def print_facts(**facts):
    print(json.dumps({"pid": os.getpid(), **facts}), flush=True)


def wait_for_parent():
    """Holds all memory until the parent is done."""
    sys.stdin.readline()


def play_nothing():
    Driver()


def play_hold(size):
    driver = Driver()
    chunk = int(size) // 8 // (2 * MIB) * 2 * MIB
    for _ in range(8):
        driver.check(driver.allocate(chunk))
    print_facts(held=8 * chunk)
    wait_for_parent()


def play_fill(chunk):
    driver, held = Driver(), 0
    while (code := driver.allocate(int(chunk))) == 0:
        held += int(chunk)
    print_facts(held=held, code=code, requested=int(chunk), error_at=time.monotonic_ns())
    wait_for_parent()


def play_large():
    driver = Driver()
    _, total = driver.free()
    code = driver.allocate(total + GIB)
    print_facts(held=0, code=code, requested=total + GIB, error_at=time.monotonic_ns())
    wait_for_parent()


def allocate_until_oom(torch, kept, size):
    """Allocates until PyTorch fails, and returns the time of the failure."""
    try:
        while True:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        return time.monotonic_ns()


def play_torch():
    import torch

    kept, size = [], 4 * GIB
    at = allocate_until_oom(torch, kept, size)
    print_facts(held=torch.cuda.memory_reserved(), requested=size, error_at=at)
    wait_for_parent()


def play_fragmented():
    import torch

    free, _ = torch.cuda.mem_get_info()
    big = torch.empty(free - 10 * GIB, dtype=torch.uint8, device="cuda")
    kept = []
    allocate_until_oom(torch, kept, 9 * MIB)
    # Two tensors share a segment: freeing every second one leaves no segment empty.
    kept = kept[::2]
    time.sleep(7)  # longer than the cooldown, so the next failure is a separate incident
    at = allocate_until_oom(torch, kept, 2 * GIB)
    print_facts(held=torch.cuda.memory_reserved(), requested=2 * GIB, error_at=at, big=big.numel())
    wait_for_parent()


def play_recovered():
    import torch

    kept = []
    free, _ = torch.cuda.mem_get_info()
    for _ in range(free // GIB - 2):
        kept.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
    del kept[::2]
    kept.append(torch.empty(8 * GIB, dtype=torch.uint8, device="cuda"))
    print_facts(held=None, requested=8 * GIB, error_at=time.monotonic_ns())
    wait_for_parent()


class TestBed:
    """An agent, and the programs that it traces."""

    def __init__(self, options, directory, stack):
        self.stack, self.directory = stack, pathlib.Path(directory)
        self.environment = dict(os.environ)
        self.messages = self.directory / "messages"
        if options.driver != "real":
            self.environment["LD_LIBRARY_PATH"] = options.driver
            self.environment["SIM_STATE_FILE"] = str(self.directory / "devices")
            self.environment["SIM_MEMORY"] = "16G"
            # The first process creates the devices, which the agent queries when it starts.
            subprocess.run([sys.executable, __file__, "--play", "nothing"], env=self.environment, check=True)
        config = self.directory / "vramscope.toml"
        config.write_text(
            '[incidents]\ncooldown = "5s"\nretention_count = 50\n[trace]\ntorch = "totals"\n', encoding="utf-8"
        )
        command = [options.vramscope, "serve", "--listen", "127.0.0.1:0", "--config", str(config)]
        command += ["--state-dir", str(self.directory / "state")]
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

    def wait(self, condition, what, timeout=60):
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            if time.monotonic() > deadline:
                sys.exit(f"timeout waiting for {what}; messages of the agent:\n{self.messages.read_text()}")
            time.sleep(0.002)
        return found

    def play(self, *arguments):
        """Starts a `play_` function of this file as a program."""
        process = subprocess.Popen(
            [sys.executable, __file__, "--play", *map(str, arguments)],
            env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self.stack.callback(self.end, process)
        return process

    def read_facts(self, process):
        """Returns the facts that a program prints."""
        line = process.stdout.readline()
        if not line:
            sys.exit(f"a program exited early; messages of the agent:\n{self.messages.read_text()}")
        return json.loads(line)

    def incident_dirs(self):
        root = self.directory / "state" / "incidents"
        names = sorted(root.iterdir()) if root.is_dir() else []
        return [name for name in names if not name.name.startswith(".")]

    def incident(self, pid, number=1):
        """Waits for an incident of a process. Returns its directory, its JSON, and when it was found."""
        def own():
            found = [name for name in self.incident_dirs() if name.name.endswith(f"-pid{pid}")]
            return found[number - 1] if len(found) >= number else None
        directory = self.wait(own, f"an incident of process {pid}")
        seen = time.monotonic_ns()
        self.wait(lambda: self.read(directory)["html_report"] != "pending", "the HTML report")
        return directory, self.read(directory), seen

    @staticmethod
    def read(directory):
        return json.loads((directory / "incident.json").read_text(encoding="utf-8"))


def holders(found):
    """Returns traced memory by process. Processes with an empty context are listed only by driver-reported usage."""
    return {holder["pid"]: holder["live_bytes"] for holder in found["holders"] if holder["live_bytes"]}


def compare(name, found, seen, expected, facts, cause):
    """Prints one line of results, and returns whether the incident is right."""
    wrong = []
    if expected is not None and holders(found) != expected:
        wrong.append(f"holders {holders(found)}, expected {expected}")
    if found["cause"]["name"] not in cause:
        wrong.append(f"cause {found['cause']['name']}, expected {' or '.join(cause)}")
    # PyTorch rounds requests up to 2 MiB.
    if found["requester"]["pid"] == facts["pid"] and abs(found["requested_bytes"] - facts["requested"]) > 2 * MIB:
        wrong.append(f"requested {found['requested_bytes']}, expected {facts['requested']}")
    if found["written_after_ms"] >= 1000:
        wrong.append(f"{found['written_after_ms']} ms is too long")
    if found["html_report"] != "written":
        wrong.append(f"html_report: {found['html_report']}")
    # The directory may exist before the program prints the time of the failure.
    after = max(0, seen - facts["error_at"]) / 1e6
    print(json.dumps({
        "case": name, "ok": not wrong, "wrong": wrong, "cause": found["cause"]["name"],
        "confidence": found["cause"]["confidence"], "summary": found["cause"]["summary"],
        "written_after_ms": found["written_after_ms"], "found_after_error_ms": round(after, 1),
        "holders": len(found["holders"]), "oom_count": found["oom_count"], "recovered": found["recovered"],
    }), flush=True)
    return not wrong


def four(bed):
    with contextlib.ExitStack() as own:
        own.callback(setattr, bed, "stack", bed.stack)
        bed.stack = own
        free, _ = Driver().free() if bed.environment.get("SIM_STATE_FILE") is None else (15 * GIB, 0)
        parts = [free * share // 100 for share in (20, 15, 10)]
        others = [bed.play("hold", part) for part in parts]
        expected = {facts["pid"]: facts["held"] for facts in map(bed.read_facts, others)}
        facts = bed.read_facts(bed.play("fill", 256 * MIB))
        expected[facts["pid"]] = facts["held"]
        _, found, seen = bed.incident(facts["pid"])
        good = facts["code"] == OUT_OF_MEMORY
        return compare("four", found, seen, expected, facts, ["device_exhausted"]) and good


def alone(bed, name, cause, check_holders=True, number=1):
    with contextlib.ExitStack() as own:
        own.callback(setattr, bed, "stack", bed.stack)
        bed.stack = own
        facts = bed.read_facts(bed.play(name))
        _, found, seen = bed.incident(facts["pid"], number)
        held = {facts["pid"]: facts["held"]} if facts["held"] else {}
        good = compare(name, found, seen, held if check_holders else None, facts, cause)
        if name == "recovered":
            bed.wait(lambda: bed.read(bed.incident_dirs()[-1])["recovered"], "the update", 20)
            print(json.dumps({"case": "recovered", "recovered": True}))
        return good


def has_torch():
    code = "import torch; assert torch.cuda.is_available()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vramscope", default="vramscope")
    parser.add_argument("--driver", default="real", help="real, or the directory of the simulated driver")
    parser.add_argument("--play", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        globals()[f"play_{options.play[0]}"](*options.play[1:])
        return
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"timeout after {TIMEOUT_SECONDS} seconds"))
    signal.alarm(TIMEOUT_SECONDS)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        bed = TestBed(options, directory, stack)
        results = [four(bed), alone(bed, "large", ["request_exceeds_device"])]
        if options.driver == "real" and has_torch():
            results.append(alone(bed, "torch", ["device_exhausted"]))
            results.append(alone(bed, "fragmented", ["cache_fragmentation"], number=2))
            results.append(alone(bed, "recovered", ["cache_fragmentation"], check_holders=False))
        else:
            print("no GPU with PyTorch: torch, fragmented and recovered are skipped", file=sys.stderr)
        summary = bed.incident_dirs()[0] / "summary.txt"
        print(summary.read_text(encoding="utf-8"), file=sys.stderr)
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
