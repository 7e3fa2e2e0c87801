#!/usr/bin/env python3
"""Makes equal allocations on several threads, and a single huge one among them."""
import collections

from account import MIB, Account, at_least, on_threads, parser, sleep

# Number of buffers that each thread keeps.
KEPT_BUFFERS = 3


def parse_args():
    found = parser(__doc__)
    add = found.add_argument
    add("--threads", type=at_least(1), default=4, help="number of threads")
    add("--iterations", type=at_least(0), default=20, help="allocations of each thread")
    add("--normal-mb", type=at_least(1), default=10, help="size of a normal allocation in MiB")
    add("--anomaly-mb", type=at_least(1), default=2096, help="size of the huge allocation in MiB")
    add("--anomaly-thread", type=at_least(0), default=0, help="thread of the huge allocation")
    add("--anomaly-iter", type=at_least(0), default=5, help="iteration of the huge allocation")
    add("--iter-ms", type=at_least(0), default=100, help="length of an iteration in milliseconds")
    return found.parse_args()


def main():
    args = parse_args()
    account = Account(args)
    huge = []

    def work(number):
        window = collections.deque()
        for iteration in range(args.iterations):
            if number == args.anomaly_thread and iteration == args.anomaly_iter:
                huge.append(account.allocate(args.anomaly_mb * MIB))
            else:
                window.append(account.allocate(args.normal_mb * MIB))
            if len(window) > KEPT_BUFFERS:
                account.free(window.popleft())
            if not sleep(args.iter_ms / 1000):
                break

    on_threads(args.threads, work)
    account.end(anomaly=[{"address": address, "bytes": args.anomaly_mb * MIB,
                          "thread": f"worker-{args.anomaly_thread}"} for address in huge])


if __name__ == "__main__":
    main()
