#!/usr/bin/env python3
"""Equal allocations on some threads, and a single huge one among them."""
import collections

from account import MIB, Account, at_least, on_threads, parser, sleep

# How many of its latest buffers each thread keeps.
WINDOW = 3


def options():
    found = parser(__doc__)
    add = found.add_argument
    add("--threads", type=at_least(1), default=4, help="how many threads")
    add("--iterations", type=at_least(0), default=20, help="how many allocations each thread makes")
    add("--normal-mb", type=at_least(1), default=10, help="the size of a normal allocation in MiB")
    add("--anomaly-mb", type=at_least(1), default=2096, help="the size of the huge allocation in MiB")
    add("--anomaly-thread", type=at_least(0), default=0, help="the thread that makes it")
    add("--anomaly-iter", type=at_least(0), default=5, help="the iteration in which it makes it")
    add("--iter-ms", type=at_least(0), default=100, help="how long an iteration takes")
    return found.parse_args()


def main():
    asked = options()
    account = Account(asked)
    huge = []

    def work(number):
        window = collections.deque()
        for iteration in range(asked.iterations):
            if number == asked.anomaly_thread and iteration == asked.anomaly_iter:
                huge.append(account.take(asked.anomaly_mb * MIB))
            else:
                window.append(account.take(asked.normal_mb * MIB))
            if len(window) > WINDOW:
                account.give(window.popleft())
            if not sleep(asked.iter_ms / 1000):
                break

    on_threads(asked.threads, work)
    account.end(anomaly=[{"address": address, "bytes": asked.anomaly_mb * MIB,
                          "thread": f"worker-{asked.anomaly_thread}"} for address in huge])


if __name__ == "__main__":
    main()
