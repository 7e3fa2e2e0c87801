#!/usr/bin/env python3
"""Reads a snapshot with Python's own pickle module, and checks the assumptions of PyTorch's viewers: opcodes, blocks
that fill their segments, a trace that leads exactly to the final state. Prints the totals."""

import json
import pickle
import pickletools
import sys

# Opcodes of snapshots that PyTorch itself wrote.
USUAL = {
    "PROTO", "FRAME", "MARK", "EMPTY_DICT", "EMPTY_LIST", "SETITEMS", "APPEND", "APPENDS", "MEMOIZE", "BINGET", "LONG_BINGET",
    "SHORT_BINUNICODE", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE", "TUPLE2",
    "STOP",
}
STATES = ("active_allocated", "active_pending_free", "inactive")

with open(sys.argv[1], "rb") as file:
    data = file.read()
for opcode, argument, _ in pickletools.genops(data):
    assert opcode.name in USUAL, opcode.name
    assert opcode.name != "LONG1" or -(2**63) <= argument < 2**63, "viewers support eight bytes"
snapshot = pickle.loads(data)
texts = set()


def check_frames(frames):
    for frame in frames:
        assert set(frame) == {"name", "filename", "line"} and isinstance(frame["line"], int)
        texts.update((frame["name"], frame["filename"]))


held, reserved, addresses = {}, {}, {}
for segment in snapshot["segments"]:
    device = segment["device"]
    check_frames(segment["frames"])
    assert segment["segment_type"] in ("small", "large") and isinstance(segment["segment_pool_id"], tuple)
    at = segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == at and block["state"] in STATES
        assert block["state"] == "inactive" or 0 <= block["requested_size"] <= block["size"]
        at += block["size"]
        check_frames(block["frames"])
        if block["state"] == "active_allocated":
            held.setdefault(device, {})[block["address"]] = (block["size"], block["requested_size"])
    assert at == segment["address"] + segment["total_size"], "blocks do not fill their segment"
    active = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
    assert segment["allocated_size"] == sum(block["size"] for block in active)
    assert segment["requested_size"] == sum(block["requested_size"] for block in active)
    reserved[device] = reserved.get(device, 0) + segment["total_size"]

refused, peaks, ends = [], {}, {}
for device, trace in enumerate(snapshot["device_traces"]):
    live, pieces, pending, last = {}, {}, set(), 0
    now = peak = 0
    for entry in trace:
        assert entry["time_us"] >= last, "time goes backwards"
        last = entry["time_us"]
        check_frames(entry["frames"])
        action = entry["action"]
        if action == "oom":
            refused.append([entry["size"], entry["device_free"]])
            continue
        address, size = entry["addr"], entry["size"]
        if action in ("segment_alloc", "segment_map"):
            assert address not in pieces
            pieces[address] = size
        elif action in ("segment_free", "segment_unmap"):
            assert pieces.pop(address) == size
        elif action == "alloc":
            assert address not in live and address not in pending
            live[address] = size
            now += size
            peak = max(peak, now)
        elif action == "free_requested":
            now -= live.pop(address)
            pending.add(address)
        else:
            assert action == "free_completed"
            pending.remove(address)
    assert not pending
    peaks[device], ends[device] = peak, now
    of_device = held.get(device, {})
    assert set(live) == set(of_device), "the trace does not lead to the blocks"
    for address, size in live.items():
        assert size == of_device[address][1], "wrong requested size"
    assert sum(pieces.values()) == reserved.get(device, 0), "the trace does not lead to the segments"

sums = {device: sum(size for size, _ in blocks.values()) for device, blocks in held.items()}
json.dump(
    {
        "allocated": sum(sums.values()),
        "reserved": sum(reserved.values()),
        "blocks": sum(len(blocks) for blocks in held.values()),
        "peak": max(peaks.values(), default=0),
        "entries": sum(len(trace) for trace in snapshot["device_traces"]),
        "devices": len(snapshot["device_traces"]),
        "host_entries": sum(len(trace) for trace in snapshot.get("host_traces", [])),
        "refused": refused,
        "texts": sorted(texts),
    },
    sys.stdout,
)
