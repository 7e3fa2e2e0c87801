#!/usr/bin/env python3
"""Allocates and frees at a given rate."""
import time

from account import Account, argparse, at_least, parser, stopped

# Events between two reads of the clock, at full speed.
CLOCK_CHECK_EVENTS = 256


def throughput(text):
    if text == "max":
        return None
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number above zero, or `max`")
    return value


def parse_args():
    found = parser(__doc__)
    add = found.add_argument
    add("--throughput", type=throughput, default="4000",
        help="events per second, or `max`; an allocation and a free are one event each")
    add("--allocate-size", type=at_least(1), default=2048, help="size of an allocation in bytes")
    add("--free-ratio", type=at_least(0, float), default=1.0, help="fraction of the allocations that is freed")
    add("--duration", type=at_least(0, float), default=30.0, help="duration in seconds")
    add("--count", type=at_least(0), default=None, help="stop after this many events")
    return found.parse_args()


def main():
    args = parse_args()
    account = Account(args)
    limit = float("inf") if args.count is None else args.count
    ratio = min(args.free_ratio, 1.0)
    due, pending, events = 0.0, None, 0
    start = time.monotonic()
    while events < limit and not stopped():
        elapsed = time.monotonic() - start
        if elapsed >= args.duration:
            break
        target = events + CLOCK_CHECK_EVENTS if args.throughput is None else int(args.throughput * elapsed) + 1
        while events < min(target, limit):
            if pending is not None:
                account.free(pending)
                pending = None
            else:
                address = account.allocate(args.allocate_size)
                due += ratio
                if due >= 1.0:
                    due -= 1.0
                    pending = address
            events += 1
        if args.throughput is not None:
            time.sleep(0.001)
    seconds = time.monotonic() - start
    if pending is not None:
        account.free(pending)
        events += 1
    account.end(events=events, events_per_second=round(events / seconds) if seconds else 0)


if __name__ == "__main__":
    main()
