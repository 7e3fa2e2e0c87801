#!/usr/bin/env python3
"""Starts processes that allocate and free, and leak some allocations."""
import json
import os
import random
import subprocess
import sys
import threading
import time

from account import (
    MIB,
    Account,
    argparse,
    at_least,
    end_with_parent,
    finish,
    install_signals,
    name_thread,
    parser,
    sleep,
    stopped,
)


def parse_args():
    found = parser(__doc__)
    add = found.add_argument
    add("--procs", type=at_least(1), default=4, help="number of processes")
    add("--duration", type=at_least(0, float), default=120.0, help="duration in seconds")
    add("--min-mb", type=at_least(1), default=2, help="smallest allocation in MiB")
    add("--max-mb", type=at_least(1), default=10, help="largest allocation in MiB")
    add("--sleep-ms", type=at_least(0), default=25, help="pause between two allocations in milliseconds")
    add("--leak-prob", type=at_least(0, float), default=0.1, help="probability that an allocation is leaked")
    add("--compute", action="store_true", help="also multiply matrices, so that libraries allocate memory")
    add("--process", type=int, default=None, help=argparse.SUPPRESS)
    return found.parse_args()


def one(args):
    """Runs one process: an allocation, a pause, and a free unless the allocation is leaked."""
    end_with_parent()
    name_thread(f"stressor-{args.process}")
    account = Account(args)
    torch = account.torch
    choose = random.Random(args.seed + args.process)
    largest = max(args.min_mb, args.max_mb)
    square = torch.ones(512, 512, device=account.device) if args.compute else None
    end = time.monotonic() + args.duration
    while time.monotonic() < end and not stopped():
        address = account.allocate(choose.randint(args.min_mb, largest) * MIB)
        if args.compute:
            square = (square @ square).clamp(0, 1)
        more = sleep(args.sleep_ms / 1000)
        if choose.random() >= args.leak_prob:
            account.free(address)
        if not more:
            break
    account.end()


def main():
    args = parse_args()
    if args.process is not None:
        one(args)
    install_signals()
    # This process stops the others; the terminal does not signal them.
    children = [
        subprocess.Popen([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--process", str(number)],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0)
        for number in range(args.procs)
    ]
    outputs = [""] * len(children)

    def read(number):
        outputs[number] = children[number].stdout.read()

    readers = [threading.Thread(target=read, args=(number,)) for number in range(len(children))]
    for reader in readers:
        reader.start()
    signaled = False
    while any(child.poll() is None for child in children):
        if stopped() and not signaled:
            signaled = True
            for child in children:
                child.terminate()
        time.sleep(0.02)
    for reader in readers:
        reader.join()
    failed = sum(child.returncode != 0 for child in children)
    accounts = [json.loads(lines.splitlines()[-1]) for lines in outputs if lines.startswith("{")]
    if failed:
        print(f"stressor.py: {failed} of {len(children)} processes failed", file=sys.stderr)
    finish({"program": "stressor", "pid": os.getpid(), "stopped": stopped(), "processes": accounts}, 1 if failed else 0)


if __name__ == "__main__":
    main()
