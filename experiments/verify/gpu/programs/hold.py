"""Prints the account of a program as one line, then pauses while nothing changes."""
import json
import time


def hold(what, seconds=1.5, **account):
    print("HOLD", json.dumps({"what": what, "time": time.time(), **account}), flush=True)
    time.sleep(seconds)
