#!/usr/bin/env python3
"""Processes that allocate and free, and forget some."""
import json
import os
import random
import subprocess
import sys
import threading
import time

from account import (MIB, Account, argparse, at_least, end_with_parent, finish, install_signals, name_thread, parser,
                     sleep, stopped)


def options():
    found = parser(__doc__)
    add = found.add_argument
    add("--procs", type=at_least(1), default=4, help="how many processes")
    add("--duration", type=at_least(0, float), default=120.0, help="seconds")
    add("--min-mb", type=at_least(1), default=2, help="the smallest allocation in MiB")
    add("--max-mb", type=at_least(1), default=10, help="the largest allocation in MiB")
    add("--sleep-ms", type=at_least(0), default=25, help="pause between two allocations")
    add("--leak-prob", type=at_least(0, float), default=0.1, help="how likely an allocation is forgotten")
    add("--compute", action="store_true", help="multiply matrices, too, so that libraries allocate besides")
    add("--process", type=int, default=None, help=argparse.SUPPRESS)
    return found.parse_args()


def one(asked):
    """One process: an allocation, a pause, and a free unless the allocation is forgotten."""
    end_with_parent()
    name_thread(f"stressor-{asked.process}")
    account = Account(asked)
    torch = account.torch
    choose = random.Random(asked.seed + asked.process)
    largest = max(asked.min_mb, asked.max_mb)
    square = torch.ones(512, 512, device=account.device) if asked.compute else None
    end = time.monotonic() + asked.duration
    while time.monotonic() < end and not stopped():
        address = account.take(choose.randint(asked.min_mb, largest) * MIB)
        if asked.compute:
            square = (square @ square).clamp(0, 1)
        more = sleep(asked.sleep_ms / 1000)
        if choose.random() >= asked.leak_prob:
            account.give(address)
        if not more:
            break
    account.end()


def main():
    asked = options()
    if asked.process is not None:
        one(asked)
    install_signals()
    # The processes are told to stop by this one, not by the terminal.
    children = [
        subprocess.Popen([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--process", str(number)],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0)
        for number in range(asked.procs)
    ]
    outputs = [""] * len(children)

    def read(number):
        outputs[number] = children[number].stdout.read()

    readers = [threading.Thread(target=read, args=(number,)) for number in range(len(children))]
    for reader in readers:
        reader.start()
    told = False
    while any(child.poll() is None for child in children):
        if stopped() and not told:
            told = True
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
