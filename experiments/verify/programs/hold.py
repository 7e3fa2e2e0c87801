"""How a program tells its own account: one line, then a pause in which nothing changes."""
import json
import time


def hold(what, seconds=1.5, **account):
    print("HOLD", json.dumps({"what": what, "time": time.time(), **account}), flush=True)
    time.sleep(seconds)
