"""What a tracer leaves in the kernel: entries of maps, objects, changed code."""
import os
import struct
import subprocess
import sys
import time

from bench import bpf

# Where in the key the process is; the kernel's tables of the tracer that have entries per process.
PID_AT = {"processes": 0, "targets": 0, "graph_states": 0, "pythons": 0, "lost_records": 0, "copies": 0,
          "launches": 8, "capturing_strea": 8, "learned_context": 8, "told_frames": 8, "known_stacks": 16,
          "thread_table": 4}
TABLES = (bpf.HASH, bpf.LRU, bpf.PERCPU_HASH)

# Tells the first bytes of a function, as they are in memory now.
PEEK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
address = ctypes.cast(library.cuMemAlloc_v2, ctypes.c_void_p).value
print(ctypes.string_at(address, 16).hex())
"""


def entries(tracer):
    """Entries of processes that are no more, by map; and maps that this list does not know."""
    stale, unknown, total = {}, [], 0
    for one in bpf.maps_of(tracer):
        if one.type in TABLES:
            at = PID_AT.get(one.name)
            if at is None:
                unknown.append(one.name)
            else:
                keys = list(one.keys())
                total += len(keys)
                pids = [struct.unpack_from("=I", key, at)[0] for key in keys]
                dead = [pid for pid in pids if pid and not os.path.exists(f"/proc/{pid}")]
                if dead:
                    stale[one.name] = len(dead)
        one.close()
    return stale, unknown, total


def code(library):
    """The beginning of a function in a process that just loaded the driver."""
    done = subprocess.run([sys.executable, "-c", PEEK, library], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def remaining(objects, patience=10):
    """BPF objects that are still there after a while."""
    until = time.monotonic() + patience
    while True:
        left = [f"{sort} {number}" for sort, numbers in objects.items() for number in numbers
                if bpf.is_there(sort, number)]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.1)


def stays_changed(library, clean, patience=10):
    """Whether probes of a tracer that is gone are still in the code. Those of others do not count: somebody else
    who traces every process has them in every driver."""
    until = time.monotonic() + patience
    while code(library) != clean:
        if time.monotonic() > until:
            return not bpf.uprobe_links()
        time.sleep(0.2)
    return False

