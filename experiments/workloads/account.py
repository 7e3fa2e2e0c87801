"""What the programs here share: options, being told to stop, and an account of their own tensors.

The options are those of the program of the same name in `workload --help`. SIGINT (Ctrl-C) and SIGTERM
end a program in good order: it prints its account and exits with 0.
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
    """Sleeps; false if the program was told to stop meanwhile."""
    end = time.monotonic() + seconds
    while not _stopped:
        left = end - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(left, 0.02))
    return False


def parser(description):
    """A parser with the options of all programs."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="Ctrl-C and SIGTERM end it in good order: the account is printed, and the exit code is 0.")
    add = found.add_argument
    add("--seed", type=int, default=1, help="makes random choices repeatable")
    add("--device", type=_device, default=0, metavar="N", help="the device to use; cuda:N is understood, too")
    add("--wait-start", action="store_true",
        help="print `ready` and wait for a line on standard input, or for SIGUSR1, before the first tensor")
    add("--hold-ms", type=int, default=0, help="wait this long at the end, with everything still live")
    add("--no-cache", action="store_true",
        help="without PyTorch's caching allocator, so that each tensor is a call of the driver")
    return found


def _device(text):
    return int(text.removeprefix("cuda:"))


def at_least(least, kind=int):
    """A type of an option: a number that is not below a limit."""
    def number(text):
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"a number of {least} or more")
        return value
    return number


def install_signals():
    signal.signal(signal.SIGINT, _on_stop)
    signal.signal(signal.SIGTERM, _on_stop)
    signal.signal(signal.SIGUSR1, _on_go)


def name_thread(name):
    """Gives the calling thread a name that the system knows."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def end_with_parent():
    """Has this process told to stop when its parent ends, however that ends."""
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
            # The end of the input: only a signal can come now.
            is_open = False


class Account:
    """Tensors, and what the program itself knows of them.

    A call of the driver takes effect at some moment inside of it. So the memory live at a moment is between
    two sums: `least` grows after an allocation and shrinks before a free, `most` the other way round.
    """

    def __init__(self, options):
        install_signals()
        if options.no_cache:
            os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        import torch  # takes seconds: not before the options are known to be right
        self.torch = torch
        self.options = options
        self.lock = threading.Lock()
        self.tensors = {}
        self.allocations = self.frees = 0
        self.least = self.most = self.peak_least = self.peak_most = 0
        if not torch.cuda.is_available():
            sys.exit(f"{os.path.basename(sys.argv[0])}: PyTorch finds no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES")
        torch.cuda.init()
        self.device = torch.device("cuda", options.device)
        torch.cuda.set_device(self.device)
        torch.cuda.synchronize(self.device)
        if options.wait_start:
            _wait_for_start()
        self.begin = time.time()

    def take(self, size):
        """A new tensor of so many bytes; its address."""
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

    def give(self, address):
        """Frees a tensor, whoever made it."""
        with self.lock:
            tensor, size, _ = self.tensors.pop(address)
            self.frees += 1
            self.least -= size
        del tensor
        with self.lock:
            self.most -= size

    def own(self):
        """The program's account of the tensors that it took."""
        live = {address: (size, thread) for address, (_, size, thread) in self.tensors.items()}
        threads = {}
        for size, thread in live.values():
            told = threads.setdefault(thread, {"live_bytes": 0, "live_allocations": 0})
            told["live_bytes"] += size
            told["live_allocations"] += 1
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

    def figures(self):
        """PyTorch's own figures; none without its caching allocator."""
        if self.options.no_cache:
            return None
        stats = self.torch.cuda.memory_stats(self.device)
        told = lambda name, other=None: stats.get(name, stats.get(other, 0))
        return {
            "allocated": told("allocated_bytes.all.current"),
            "allocated_peak": told("allocated_bytes.all.peak"),
            "reserved": told("reserved_bytes.all.current"),
            "reserved_peak": told("reserved_bytes.all.peak"),
            "segments": told("segment.all.current"),
            "device_allocs": told("num_device_alloc", "segment.all.allocated"),
            "device_frees": told("num_device_free", "segment.all.freed"),
            "alloc_retries": told("num_alloc_retries"),
            "ooms": told("num_ooms"),
        }

    def tell(self):
        self.torch.cuda.synchronize(self.device)
        caching = self.figures()
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
        """Waits if that was asked for, prints the account as one line, and ends the process.

        Without the interpreter's own end: it would free tensors after the account was told.
        """
        sleep(self.options.hold_ms / 1000)
        finish({**self.tell(), **more})


def finish(account, code=0):
    print(json.dumps(account), flush=True)
    os._exit(code)


def on_threads(count, body):
    """Runs `body(number)` on named threads; the first error counts."""
    errors = []

    def run(number):
        name_thread(f"worker-{number}")
        try:
            body(number)
        except Exception as error:  # told by the main thread, for the others to end in good order
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), name=f"worker-{number}") for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
