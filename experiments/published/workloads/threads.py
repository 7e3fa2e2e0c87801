#!/usr/bin/env python3
"""Starts threads that allocate, and free memory of any thread."""
import random
import sys
import threading
import time

from account import MIB, Account, at_least, on_threads, parser, sleep, stopped


def parse_args():
    found = parser(__doc__)
    add = found.add_argument
    add("--threads", type=at_least(1), default=5, help="number of threads")
    add("--duration", type=at_least(0, float), default=60.0, help="duration in seconds")
    add("--max-tensor-mb", type=at_least(1), default=10, help="largest allocation in MiB")
    add("--alloc-prob", type=at_least(0, float), default=0.65, help="probability that a step allocates instead of freeing")
    add("--memory-cap-mb", type=at_least(1), default=4096, help="maximum of live memory in MiB")
    add("--stats-interval", type=at_least(0, float), default=0.0,
        help="print PyTorch's statistics to standard error every this many seconds; 0: never")
    return found.parse_args()


def main():
    args = parse_args()
    account = Account(args)
    cap = args.memory_cap_mb * MIB
    lock = threading.Lock()
    buffers, live = [], 0
    end = time.monotonic() + args.duration

    def work(number):
        nonlocal live
        choose = random.Random(args.seed + number)
        while time.monotonic() < end and not stopped():
            if choose.random() < args.alloc_prob:
                size = choose.randint(1, args.max_tensor_mb * MIB)
                with lock:
                    fits = live + size <= cap
                    live += size if fits else 0
                if fits:
                    address = account.allocate(size)
                    with lock:
                        buffers.append((address, size))
            else:
                with lock:
                    taken = buffers.pop(choose.randrange(len(buffers))) if buffers else None
                if taken:
                    account.free(taken[0])
                    with lock:
                        live -= taken[1]
            if not sleep(0.002):
                break

    def stats():
        while time.monotonic() < end and sleep(args.stats_interval):
            print(account.torch_stats() or account.own(), file=sys.stderr, flush=True)

    if args.stats_interval:
        threading.Thread(target=stats, daemon=True).start()
    on_threads(args.threads, work)
    account.end()


if __name__ == "__main__":
    main()
