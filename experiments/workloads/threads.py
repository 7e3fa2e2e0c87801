#!/usr/bin/env python3
"""Threads that allocate and free, each other's memory too."""
import random
import sys
import threading
import time

from account import MIB, Account, at_least, on_threads, parser, sleep, stopped


def options():
    found = parser(__doc__)
    add = found.add_argument
    add("--threads", type=at_least(1), default=5, help="how many threads")
    add("--duration", type=at_least(0, float), default=60.0, help="seconds")
    add("--max-tensor-mb", type=at_least(1), default=10, help="the largest allocation in MiB")
    add("--alloc-prob", type=at_least(0, float), default=0.65, help="how likely a step allocates instead of freeing")
    add("--memory-cap-mb", type=at_least(1), default=4096, help="the most memory live at a time, in MiB")
    add("--stats-interval", type=at_least(0, float), default=0.0,
        help="tell PyTorch's figures on standard error every so many seconds; 0: never")
    return found.parse_args()


def main():
    asked = options()
    account = Account(asked)
    cap = asked.memory_cap_mb * MIB
    lock = threading.Lock()
    buffers, live = [], 0
    end = time.monotonic() + asked.duration

    def work(number):
        nonlocal live
        choose = random.Random(asked.seed + number)
        while time.monotonic() < end and not stopped():
            if choose.random() < asked.alloc_prob:
                size = choose.randint(1, asked.max_tensor_mb * MIB)
                with lock:
                    fits = live + size <= cap
                    live += size if fits else 0
                if fits:
                    address = account.take(size)
                    with lock:
                        buffers.append((address, size))
            else:
                with lock:
                    taken = buffers.pop(choose.randrange(len(buffers))) if buffers else None
                if taken:
                    account.give(taken[0])
                    with lock:
                        live -= taken[1]
            if not sleep(0.002):
                break

    def stats():
        while time.monotonic() < end and sleep(asked.stats_interval):
            print(account.figures() or account.own(), file=sys.stderr, flush=True)

    if asked.stats_interval:
        threading.Thread(target=stats, daemon=True).start()
    on_threads(asked.threads, work)
    account.end()


if __name__ == "__main__":
    main()
