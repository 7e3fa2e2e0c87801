#!/usr/bin/env python3
"""Runs PyTorch's own viewers over a snapshot that `vramscope export --format torch` wrote, on a machine with PyTorch:

    torch_viz.py SNAPSHOT [OTHER]

Calls every function of torch.cuda._memory_viz that reads a snapshot; OTHER is compared with it (default: itself). Fails
if one of them fails, or if its totals differ from those of the snapshot. HTML pages are written next to the snapshot."""

import io
import pickle
import re
import sys
from contextlib import redirect_stdout

import torch
from torch.cuda import _memory_viz as viz


def folded_sum(lines):
    """Returns the sum of the values of folded lines."""
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

    # Quadratic: it searches all segments for each entry.
    lines = viz.trace(snapshot)
    listed = sum(int(count) for count in re.findall(r"^(\d+) entries$", lines, re.MULTILINE))
    assert listed == entries, (listed, entries)
    print("trace: ok")

    same = lambda text: text  # the lines themselves instead of an SVG
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
