"""Shared code of the workloads: options, stopping by signals, and an account of their own tensors.

The options are those of the program of the same name in `workload --help`. On SIGINT (Ctrl-C) and SIGTERM
a program prints its account and exits with 0.
"""
import argparse
import ctypes
import hashlib
import json
import os
import select
import signal
import sys
import threading
import time

MIB = 1 << 20
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15

_stopped = False
_go = False


def _on_stop(_signal, _frame):
    global _stopped
    _stopped = True


def _on_go(_signal, _frame):
    global _go
    _go = True


def stopped():
    return _stopped


def sleep(seconds):
    """Sleeps. Returns false if the program received a stop signal meanwhile."""
    end = time.monotonic() + seconds
    while not _stopped:
        left = end - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(left, 0.02))
    return False


def parser(description):
    """Returns a parser with the options of all programs."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="Ctrl-C and SIGTERM end it cleanly: the account is printed, and the exit code is 0.")
    add = found.add_argument
    add("--seed", type=int, default=1, help="seed of random choices")
    add("--device", type=_device, default=0, metavar="N", help="device to use; cuda:N is accepted")
    add("--wait-start", action="store_true",
        help="print `ready` and wait for a line on standard input, or for SIGUSR1, before the first tensor")
    add("--hold-ms", type=int, default=0, help="hold all memory for this long at the end")
    add("--no-cache", action="store_true",
        help="disable PyTorch's caching allocator, so that each tensor is a driver call")
    return found


def _device(text):
    return int(text.removeprefix("cuda:"))


def at_least(least, kind=int):
    """Returns the type of an option: a number with a minimum."""
    def number(text):
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"must be {least} or more")
        return value
    return number


def install_signals():
    signal.signal(signal.SIGINT, _on_stop)
    signal.signal(signal.SIGTERM, _on_stop)
    signal.signal(signal.SIGUSR1, _on_go)


def name_thread(name):
    """Sets the kernel's name of the calling thread."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def end_with_parent():
    """Makes the kernel send SIGTERM to this process when its parent exits for any reason."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _wait_for_start():
    print("ready", flush=True)
    is_open = True
    while not (_stopped or _go):
        if not is_open:
            time.sleep(0.02)
        elif select.select([sys.stdin], [], [], 0.02)[0]:
            line = sys.stdin.readline()
            if line:
                return
            # End of the input: only a signal can start the program now.
            is_open = False


class Account:
    """The program's own account of its tensors.

    A driver call takes effect at some time between its entry and its return. So live memory is bounded by
    two sums: `least` grows after an allocation and shrinks before a free, `most` the other way round.
    """

    def __init__(self, options):
        install_signals()
        if options.no_cache:
            os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        import torch  # takes seconds, so options are checked before
        self.torch = torch
        self.options = options
        self.lock = threading.Lock()
        self.tensors = {}
        self.allocations = self.frees = 0
        self.least = self.most = self.peak_least = self.peak_most = 0
        if not torch.cuda.is_available():
            sys.exit(f"{os.path.basename(sys.argv[0])}: PyTorch finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES")
        torch.cuda.init()
        self.device = torch.device("cuda", options.device)
        torch.cuda.set_device(self.device)
        torch.cuda.synchronize(self.device)
        if options.wait_start:
            _wait_for_start()
        self.begin = time.time()

    def allocate(self, size):
        """Creates a tensor of `size` bytes and returns its address."""
        with self.lock:
            self.most += size
            self.peak_most = max(self.peak_most, self.most)
        try:
            tensor = self.torch.empty(size, dtype=self.torch.uint8, device=self.device)
        except RuntimeError:
            with self.lock:
                self.most -= size
            raise
        address = tensor.data_ptr()
        with self.lock:
            self.tensors[address] = (tensor, size, threading.current_thread().name)
            self.allocations += 1
            self.least += size
            self.peak_least = max(self.peak_least, self.least)
        return address

    def free(self, address):
        """Frees a tensor of any thread."""
        with self.lock:
            tensor, size, _ = self.tensors.pop(address)
            self.frees += 1
            self.least -= size
        del tensor
        with self.lock:
            self.most -= size

    def own(self):
        """Returns the account of the tensors that the program created itself."""
        live = {address: (size, thread) for address, (_, size, thread) in self.tensors.items()}
        threads = {}
        for size, thread in live.values():
            totals = threads.setdefault(thread, {"live_bytes": 0, "live_allocations": 0})
            totals["live_bytes"] += size
            totals["live_allocations"] += 1
        lines = "".join(f"{address:#x} {live[address][0]}\n" for address in sorted(live))
        return {
            "allocations": self.allocations,
            "frees": self.frees,
            "live_bytes": sum(size for size, _ in live.values()),
            "live_allocations": len(live),
            "peak_at_least": self.peak_least,
            "peak_at_most": self.peak_most,
            "threads": threads,
            "live_sha256": hashlib.sha256(lines.encode()).hexdigest(),
        }

    def torch_stats(self):
        """Returns PyTorch's own statistics, or None without its caching allocator."""
        if self.options.no_cache:
            return None
        stats = self.torch.cuda.memory_stats(self.device)
        value = lambda name, other=None: stats.get(name, stats.get(other, 0))
        return {
            "allocated": value("allocated_bytes.all.current"),
            "allocated_peak": value("allocated_bytes.all.peak"),
            "reserved": value("reserved_bytes.all.current"),
            "reserved_peak": value("reserved_bytes.all.peak"),
            "segments": value("segment.all.current"),
            "device_allocs": value("num_device_alloc", "segment.all.allocated"),
            "device_frees": value("num_device_free", "segment.all.freed"),
            "alloc_retries": value("num_alloc_retries"),
            "ooms": value("num_ooms"),
        }

    def to_json(self):
        self.torch.cuda.synchronize(self.device)
        caching = self.torch_stats()
        segments = [] if caching is None else self.torch.cuda.memory_snapshot()
        return {
            "program": os.path.splitext(os.path.basename(sys.argv[0]))[0],
            "pid": os.getpid(),
            "stopped": _stopped,
            "seconds": round(time.time() - self.begin, 3),
            "versions": {"Python": sys.version.split()[0], "PyTorch": self.torch.__version__,
                         "CUDA": self.torch.version.cuda},
            "torch": caching,
            "segments": sorted([s["address"], s["total_size"]] for s in segments if s["device"] == self.options.device),
            "own": self.own(),
        }

    def end(self, **more):
        """Waits for --hold-ms, prints the account as one line, and ends the process.

        It skips the shutdown of the interpreter, which would free tensors after the account was printed.
        """
        sleep(self.options.hold_ms / 1000)
        finish({**self.to_json(), **more})


def finish(account, code=0):
    print(json.dumps(account), flush=True)
    os._exit(code)


def on_threads(count, body):
    """Runs `body(number)` on named threads, and raises the first error."""
    errors = []

    def run(number):
        name_thread(f"worker-{number}")
        try:
            body(number)
        except Exception as error:  # noqa: BLE001 - raised by the main thread, so that the other threads finish first
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), name=f"worker-{number}") for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
