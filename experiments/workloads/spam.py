#!/usr/bin/env python3
"""As many allocations and frees a second as asked for."""
import time

from account import Account, argparse, at_least, parser, stopped

# Events between two looks at the clock, at full speed.
BATCH = 256


def throughput(text):
    if text == "max":
        return None
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("a number above zero, or `max`")
    return value


def options():
    found = parser(__doc__)
    add = found.add_argument
    add("--throughput", type=throughput, default="4000",
        help="events a second, or `max`; an allocation and a free are one event each")
    add("--allocate-size", type=at_least(1), default=2048, help="bytes of an allocation")
    add("--free-ratio", type=at_least(0, float), default=1.0, help="the part of the allocations that is freed")
    add("--duration", type=at_least(0, float), default=30.0, help="seconds")
    add("--count", type=at_least(0), default=None, help="stop after so many events")
    return found.parse_args()


def main():
    asked = options()
    account = Account(asked)
    limit = float("inf") if asked.count is None else asked.count
    ratio = min(asked.free_ratio, 1.0)
    due, pending, events = 0.0, None, 0
    start = time.monotonic()
    while events < limit and not stopped():
        elapsed = time.monotonic() - start
        if elapsed >= asked.duration:
            break
        target = events + BATCH if asked.throughput is None else int(asked.throughput * elapsed) + 1
        while events < min(target, limit):
            if pending is not None:
                account.give(pending)
                pending = None
            else:
                address = account.take(asked.allocate_size)
                due += ratio
                if due >= 1.0:
                    due -= 1.0
                    pending = address
            events += 1
        if asked.throughput is not None:
            time.sleep(0.001)
    seconds = time.monotonic() - start
    if pending is not None:
        account.give(pending)
        events += 1
    account.end(events=events, events_per_second=round(events / seconds) if seconds else 0)


if __name__ == "__main__":
    main()
