"""Paces the programs of this directory: each runs one step every `--interval` seconds, with the leak or, by `--fixed`, without."""
import argparse
import time

PARSER = argparse.ArgumentParser()
PARSER.add_argument("--fixed", action="store_true", help="run the corrected program")
PARSER.add_argument("--seconds", type=float, default=150)
PARSER.add_argument("--interval", type=float, default=0.05)
PARSER.add_argument("--warm", type=int, default=10, help="steps before READY is printed")
OPTIONS = PARSER.parse_args()
FIXED = OPTIONS.fixed


def steps(interval=OPTIONS.interval):
    """Yields the number of each step; prints READY once the program is warm."""
    end, number = None, 0
    while end is None or time.monotonic() < end:
        yield number
        number += 1
        if number == OPTIONS.warm:
            print("READY", flush=True)
            end = time.monotonic() + OPTIONS.seconds
        time.sleep(interval)
