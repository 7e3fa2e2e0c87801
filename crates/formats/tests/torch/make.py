#!/usr/bin/env python3
"""Writes the generated snapshots of this directory and `expected.json`, the expected results.

The results come from `allocator.py`'s own statistics, and for real files from PyTorch's
(`torch.cuda.memory_stats()`) and a plain loop over the unpickled file; never from vramscope.
"""
import base64
import io
import json
import os
import pickle
import random
import struct
import typing

from allocator import Allocator

HERE = os.path.dirname(os.path.abspath(__file__))
EXPECTED = {}


def frame(name, line=0, filename="model.py"):
    return {"name": name, "filename": filename, "line": line}


NOISE = frame("torch::unwind::unwind()", 0, "??")
STACKS = [
    [NOISE, frame("c10::malloc", 0, "??"), frame("forward", 10), frame("main", 1)],
    [NOISE, frame("backward", 20), frame("main", 2)],
    [frame("step", 30), frame("main", 3)],
]


def work(device, rng, steps, largest, streams=(0,), pending=0.0):
    """Simulates a program that allocates and frees, with frees that wait for a stream."""
    waiting = []
    for _ in range(steps):
        if device.live and rng.random() < 0.48:
            block = device.free(rng.choice(sorted(device.live)), STACKS[2], rng.random() < pending)
            if block.state == "active_pending_free":
                waiting.append(block)
        else:
            size = rng.choice((rng.randint(1, 5000), rng.randint(1, largest)))
            device.malloc(size, rng.choice(streams), list(rng.choice(STACKS)))
        if waiting and rng.random() < 0.3:
            device.complete(waiting.pop(0), STACKS[2])
    return waiting


def snapshot(*devices, **more):
    return {"segments": [s for d in devices for s in d.snapshot_segments()],
            "device_traces": [d.trace for d in devices],
            "allocator_settings": devices[0].settings(), "external_annotations": [], **more}


def expect(name, devices=(), exact=True, **more):
    EXPECTED[name] = {"levels": [d.expected() for d in devices], "exact": exact, **more}


def write(name, data, protocol=4):
    with open(os.path.join(HERE, "generated", name), "wb") as file:
        file.write(data if isinstance(data, bytes) else pickle.dumps(data, protocol=protocol))


def counts(devices):
    trace = [e["action"] for d in devices for e in d.trace]
    return {"began": trace.count("alloc"), "ended": trace.count("free_requested")}


class Jit:
    """Protocol 2 as PyTorch's C++ pickler writes it: one batch per container, then its memo."""

    def __init__(self):
        self.out, self.memo, self.keep = io.BytesIO(), {}, []

    def put(self, key):
        self.memo[key] = len(self.memo)
        n = self.memo[key]
        self.out.write(b"q" + bytes([n]) if n < 256 else b"r" + struct.pack("<I", n))

    def push(self, value):
        key = value if isinstance(value, str) else id(value)
        if isinstance(value, (str, list, dict)) and key in self.memo:
            n = self.memo[key]
            self.out.write(b"h" + bytes([n]) if n < 256 else b"j" + struct.pack("<I", n))
        elif isinstance(value, str):
            data = value.encode()
            self.out.write(b"X" + struct.pack("<I", len(data)) + data)
            self.put(key)
        elif value is None or isinstance(value, bool):
            self.out.write({None: b"N", True: b"\x88", False: b"\x89"}[value])
        elif isinstance(value, int):
            fits = -(1 << 31) <= value < 1 << 31
            self.out.write(b"J" + struct.pack("<i", value) if fits else b"\x8a\x08" + struct.pack("<q", value))
        elif isinstance(value, float):
            self.out.write(b"G" + struct.pack(">d", value))
        elif isinstance(value, tuple):
            self.out.write(b"(" if value else b")")
            for item in value:
                self.push(item)
            self.out.write(b"t" if value else b"")
        else:
            is_dict = isinstance(value, dict)
            self.out.write(b"}" if is_dict else b"]")
            if value:
                self.out.write(b"(")
                for item in (x for pair in value.items() for x in pair) if is_dict else value:
                    self.push(item)
                self.out.write(b"u" if is_dict else b"e")
            self.keep.append(value)
            self.put(key)

    def dump(self, value):
        self.out.write(b"\x80\x02")
        self.push(value)
        return self.out.getvalue() + b"."


class OneByOne(pickle._Pickler):
    """Adds items one at a time."""

    def _batch_appends(self, items):
        for item in items:
            self.save(item)
            self.write(b"a")

    def _batch_setitems(self, items):
        for key, value in items:
            self.save(key)
            self.save(value)
            self.write(b"s")

    dispatch: typing.ClassVar = dict(pickle._Pickler.dispatch)


def plain_files():
    device = Allocator()
    work(device, random.Random(1), 400, 30 << 20, streams=(0, 0x55D0))
    data = snapshot(device)
    for protocol in (2, 3, 4, 5):
        write(f"protocol-{protocol}.pickle", data, protocol)
        expect(f"protocol-{protocol}.pickle", [device], **counts([device]))
    write("cpp-pickler.pickle", Jit().dump(data))
    expect("cpp-pickler.pickle", [device], **counts([device]))
    out = io.BytesIO()
    OneByOne(out, protocol=4).dump(data)
    write("one-by-one.pickle", out.getvalue())
    expect("one-by-one.pickle", [device], **counts([device]))
    write("segments-only.pickle", data["segments"])
    live = len(device.live)
    now = {k: {"current": v["current"], "peak": v["current"]} for k, v in device.expected().items()}
    EXPECTED["segments-only.pickle"] = {"levels": [now], "exact": False, "began": live, "ended": 0}

    buffer = pickle.dumps(data)
    buffer += b"\x00" * (3 - len(buffer) % 3)
    page = json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(buffer).decode()}])
    html = ("\n<!DOCTYPE html>\n<html>\n<body>\n<script type=\"module\">\n"
            f"const local_files = {page}\nadd_local_files(local_files, 'Active Memory Timeline')\n</script>\n")
    write("page.html", html.encode())
    expect("page.html", [device], **counts([device]))


def allocator_files():
    for name, options, largest in (
        ("expandable.pickle", {"expandable": True}, 60 << 20),
        ("max-split.pickle", {"max_split": 32 << 20}, 90 << 20),
        ("roundup.pickle", {"divisions": [4] * 16}, 50 << 20),
        ("small-only.pickle", {}, 1 << 20),
    ):
        device, rng = Allocator(**options), random.Random(name)
        for _ in range(4):
            work(device, rng, 150, largest, streams=(0, 7))
            device.empty_cache(STACKS[2])
        work(device, rng, 50, largest, streams=(0, 7))
        write(name, snapshot(device))
        expect(name, [device], **counts([device]))

    device = Allocator()
    waiting = work(device, random.Random(5), 500, 30 << 20, streams=(0, 7), pending=0.5)
    assert waiting
    write("pending.pickle", snapshot(device))
    expect("pending.pickle", [device], **counts([device]))

    one, two = Allocator(0), Allocator(1, base=0x7E0000000000, start_us=1_700_000_000_000_400)
    for rng, device in ((random.Random(6), one), (random.Random(7), two)):
        work(device, rng, 200, 30 << 20)
    write("two-devices.pickle", snapshot(one, two))
    expect("two-devices.pickle", [one, two], **counts([one, two]))


def reset_peaks(device):
    for level in device.stats.values():
        level.peak = level.current


def incomplete_files():
    # Blocks from before the trace are known from its end, and from frees without an allocation.
    for name, options, largest in (("ring.pickle", {}, 1 << 20), ("ring-expandable.pickle", {"expandable": True}, 40 << 20)):
        device, rng = Allocator(**options), random.Random(f"{name} 2")
        work(device, rng, 300, largest)
        older = len(device.live)
        assert older > 10
        reset_peaks(device)
        device.trace = []
        work(device, rng, 200, largest)
        write(name, snapshot(device))
        numbers = counts([device])
        expect(name, [device], began=numbers["began"] + older, ended=numbers["ended"], older=older)
    # With large blocks the peak may be up to a MiB off for each older block that is freed.
    device, rng = Allocator(), random.Random(9)
    work(device, rng, 300, 30 << 20)
    older = len(device.live)
    reset_peaks(device)
    device.trace = []
    work(device, rng, 200, 30 << 20)
    write("ring-large.pickle", snapshot(device))
    numbers = counts([device])
    expect("ring-large.pickle", [device], exact=None, began=numbers["began"] + older,
           ended=numbers["ended"], older=older)

    # Recording stopped before the snapshot.
    device, rng = Allocator(), random.Random(11)
    work(device, rng, 200, 1 << 20)
    trace = list(device.trace)
    work(device, rng, 100, 1 << 20)
    device.trace = trace
    write("stopped.pickle", snapshot(device))
    now = {k: {"current": v["current"], "peak": None} for k, v in device.expected().items()}
    EXPECTED["stopped.pickle"] = {"levels": [now], "exact": False}

    # torch 2.0: no times, no block addresses, a history instead of frames.
    device = Allocator()
    work(device, random.Random(12), 200, 30 << 20)
    data = snapshot(device)
    for entry in data["device_traces"][0]:
        for key in ("time_us", "compile_context", "user_metadata"):
            del entry[key]
    for segment in data["segments"]:
        for key in ("is_expandable", "segment_pool_id", "requested_size", "frames"):
            del segment[key]
        for block in segment["blocks"]:
            frames, requested = block.pop("frames"), block.pop("requested_size")
            address = block.pop("address")
            if block["state"] != "inactive":
                native = [frame("c10::alloc", 0, "??")]
                block["history"] = [{"addr": address, "real_size": requested, "frames": frames,
                                     "cpp_frames": native},
                                    {"addr": address, "real_size": 1, "frames": []}]
    del data["allocator_settings"], data["external_annotations"]
    write("torch-2.0.pickle", data)
    expect("torch-2.0.pickle", [device], exact=False, **counts([device]))


def odd_files():
    device = Allocator()
    device.malloc(1000, 0, STACKS[0])
    device.entry("segment_teleport", 5, 0, None, addr=7)
    device.entry("segment_teleport", 5, 0, None, addr=7)
    device.entry("snapshot", 0, 0, None, addr=0)
    device.entry("annotate", 0, 0, None, addr=0)
    device.entry("oom", 1 << 40, 0, STACKS[1], device_free=3 << 30)
    device.malloc(2000, (1 << 63) + 5, None)
    write("odd-entries.pickle", snapshot(device))
    expect("odd-entries.pickle", [device], began=2, ended=0)

    # Pinned host memory.
    device, host = Allocator(), Allocator(base=0x100000000000)
    work(device, random.Random(14), 50, 1 << 20)
    held = [host.malloc(512 << i, 0, STACKS[0]) for i in range(6)]
    host.free(held[2], STACKS[1])
    write("host.pickle", snapshot(device, host_segments=host.snapshot_segments(), host_traces=[host.trace]))
    expect("host.pickle", [device], pinned=host.stats["allocated"].current)

    # A snapshot made from a profile: tensors on two devices and the CPU, and no allocator.
    def event(action, addr, size, **more):
        return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": STACKS[2], **more}

    traces = [[event("alloc", 1000, 300, category="parameter"), event("alloc", 2000, 77, category="gradient"),
               event("free_requested", 2000, 77), event("free_completed", 2000, 77)],
              [], [event("alloc", 9000, 50, category="unknown")]]
    segments = [
        {"device": 0, "address": 500, "total_size": 800, "stream": 0, "blocks": [
            {"size": 100, "state": "active_allocated", "requested_size": 100, "frames": STACKS[1]},
            {"size": 400, "state": "inactive"},
            {"size": 300, "state": "active_allocated", "requested_size": 300, "frames": STACKS[2]}]},
        {"device": 2, "address": 9000, "total_size": 50, "stream": 0, "blocks": [
            {"size": 50, "state": "active_allocated", "requested_size": 50, "frames": STACKS[2]}]}]
    write("profile.pickle", {"device_traces": traces, "segments": segments})
    EXPECTED["profile.pickle"] = {"levels": [], "exact": False, "began": 4, "ended": 1, "older": 1,
                                  "torch": 400, "pageable": 50}
    write("empty.pickle", {"segments": [], "device_traces": [[]]})
    EXPECTED["empty.pickle"] = {"levels": [Allocator().expected()], "exact": False, "began": 0, "ended": 0}


def real_files():
    for name in ("torch-2.11_native.pickle", "torch-2.11_oom.pickle"):
        with open(os.path.join(HERE, "real", name), "rb") as file:
            data = pickle.load(file)
        blocks = [b for s in data["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
        reserved = sum(s["total_size"] for s in data["segments"])
        trace = data["device_traces"][0]
        actions = [entry["action"] for entry in trace]
        EXPECTED[name] = {
            # Memory of the backward pass comes from threads without Python.
            "live_with_python": sum(any(f["filename"].endswith(".py") for f in b["frames"]) for b in blocks),
            "live": sum(b["size"] for b in blocks), "live_blocks": len(blocks), "reserved": reserved,
            "began": actions.count("alloc"), "ended": actions.count("free_requested"),
            "first_us": trace[0]["time_us"], "levels": [], "exact": True,
        }
    with open(os.path.join(HERE, "real", "torch-2.11_native.memory_stats.json")) as file:
        stats = json.load(file)
    EXPECTED["torch-2.11_native.pickle"]["levels"] = [{
        name: {"current": stats[f"{name}_bytes.all.current"], "peak": stats[f"{name}_bytes.all.peak"]}
        for name in ("allocated", "requested", "active", "reserved")}]
    EXPECTED["torch-2.11_native.pickle"]["inactive_split"] = {
        part: stats[f"inactive_split_bytes.{part}_pool.current"] for part in ("small", "large")}


os.makedirs(os.path.join(HERE, "generated"), exist_ok=True)
plain_files()
allocator_files()
incomplete_files()
odd_files()
real_files()
with open(os.path.join(HERE, "expected.json"), "w") as file:
    json.dump(EXPECTED, file, indent=1, sort_keys=True)
    file.write("\n")
