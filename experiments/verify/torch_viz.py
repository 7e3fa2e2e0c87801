#!/usr/bin/env python3
"""Runs PyTorch's own viewers over a snapshot that `vramscope export --format torch` wrote, on a machine with PyTorch:

    torch_viz.py SNAPSHOT [OTHER]

Every function of torch.cuda._memory_viz that reads a snapshot is called; OTHER is compared with it (default: itself).
Fails where one of them does, or where its sums are not those of the snapshot. Pages go beside the snapshot."""

import io
import pickle
import re
import sys
from contextlib import redirect_stdout

import torch
from torch.cuda import _memory_viz as viz


def folded_sum(lines):
    """The figures of folded lines, added up."""
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines.splitlines())


def main():
    path = sys.argv[1]
    other = sys.argv[2] if len(sys.argv) > 2 else path
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    with open(other, "rb") as file:
        second = pickle.load(file)
    segments = snapshot["segments"]
    reserved = sum(segment["total_size"] for segment in segments)
    entries = sum(len(trace) for trace in snapshot["device_traces"])
    print(f"PyTorch {torch.__version__}: {len(segments)} segments, {reserved} bytes, {entries} entries")

    summary = viz.segsum(snapshot)
    assert f"segments: {len(segments)}\n" in summary, summary
    print("segsum: ok")

    # It finds the segment of each entry by looking at all of them, so long traces take long.
    lines = viz.trace(snapshot)
    told = sum(int(count) for count in re.findall(r"^(\d+) entries$", lines, re.M))
    assert told == entries, (told, entries)
    print("trace: ok")

    same = lambda text: text  # noqa: E731: the lines themselves, instead of a picture
    for name in ("segments", "memory"):
        lines = getattr(viz, name)(snapshot, format_flamegraph=same)
        assert folded_sum(lines) == reserved, name
        print(f"{name}: ok")

    out = io.StringIO()
    with redirect_stdout(out):
        lines = viz.compare(segments, second["segments"], format_flamegraph=same)
    keys = [{(one["address"], one["total_size"]) for one in side["segments"]} for side in (snapshot, second)]
    changed = sum(bytes for _, bytes in keys[0] ^ keys[1])
    assert folded_sum(lines) == changed, out.getvalue()
    print("compare: ok")

    for name, page in (
        ("trace_plot", viz.trace_plot(snapshot)),
        ("trace_plot_segments", viz.trace_plot(snapshot, plot_segments=True)),
        ("segment_plot", viz.segment_plot(snapshot)),
    ):
        assert "MemoryViz.js" in page and "base64" in page, name
        with open(f"{path}.{name}.html", "w") as file:
            file.write(page)
        print(f"{name}: ok, {path}.{name}.html")


main()
