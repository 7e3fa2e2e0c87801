"""Checks what a tracer leaves in the kernel: map entries, BPF objects, changed code."""
import os
import struct
import subprocess
import sys
import time

from lib import bpf

# Byte offset of the pid in the keys of the tracer's maps. The kernel truncates map names to 15 characters.
PID_OFFSET = {"processes": 0, "targets": 0, "graph_states": 0, "pythons": 0, "lost_records": 0, "copies": 0,
              "unknown_calls": 0, "launches": 8, "capturing_strea": 8, "reported_contex": 8, "sent_frames": 8, "known_stacks": 16,
              "thread_table": 4}
HASH_TYPES = (bpf.HASH, bpf.LRU, bpf.PERCPU_HASH)

# Prints the first bytes of a function as they are in memory.
READ_CODE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
address = ctypes.cast(library.cuMemAlloc_v2, ctypes.c_void_p).value
print(ctypes.string_at(address, 16).hex())
"""


def entries(tracer):
    """Counts map entries of a tracer.

    Returns the entries of processes that have exited, by map; the maps that PID_OFFSET lacks; the number of entries.
    """
    stale, unknown, total = {}, [], 0
    for bpf_map in bpf.maps_of(tracer):
        if bpf_map.type in HASH_TYPES:
            offset = PID_OFFSET.get(bpf_map.name)
            if offset is None:
                unknown.append(bpf_map.name)
            else:
                keys = list(bpf_map.keys())
                total += len(keys)
                pids = [struct.unpack_from("=I", key, offset)[0] for key in keys]
                exited = [pid for pid in pids if pid and not os.path.exists(f"/proc/{pid}")]
                if exited:
                    stale[bpf_map.name] = len(exited)
        bpf_map.close()
    return stale, unknown, total


def code(library):
    """Returns the first bytes of a function in a process that has just loaded the driver."""
    done = subprocess.run([sys.executable, "-c", READ_CODE, library], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def remaining(objects, timeout=10):
    """Returns the BPF objects that still exist after the timeout."""
    until = time.monotonic() + timeout
    while True:
        left = [f"{kind} {number}" for kind, numbers in objects.items() for number in numbers
                if bpf.exists(kind, number)]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.1)


def code_stays_changed(library, clean, timeout=10):
    """Returns whether probes of an ended tracer are still in the code.

    Other tracers of every process also have probes in each driver; the code is not checked while they run.
    """
    until, others = time.monotonic() + timeout, False
    while code(library) != clean:
        others = others or bpf.probe_programs_exist()
        if time.monotonic() > until:
            return not others
        time.sleep(0.2)
    return False
