"""Samples of a running tracer over time, the checks on them, and their plot."""
import collections
import os
import time

from lib import chart, leftovers
from lib.processes import private_bytes, resident_bytes

# More growth in the second half of the longest run is a leak. For its last report, the tracer keeps the totals of exited
# processes and the rows of their sites, up to these numbers. Halves of the rows are merged at once, so memory goes up and
# down: the maxima of both halves are compared.
FLAT_MB, STEP_MB = 3.0, 16.0
KEPT_PROCESSES, KEPT_ROWS = 4096, 65536
KB_PER_PROCESS, KB_PER_ROW = 24, 1.2
# Files and threads that a tracer may have open for a moment, for instance while it reads a new program.
FLAT_COUNT = 8
# Points of a series in the results.
POINTS = 720

Sample = collections.namedtuple("Sample", "at private resident descriptors threads entries stale lost ended rows")


class Samples:
    """Memory, open files, threads, map entries and losses of one tracer."""

    def __init__(self, pid, seconds):
        self.pid, self.rows, self.due, self.began = pid, [], 0.0, time.monotonic()
        # Reading all maps takes milliseconds.
        self.period = max(0.5, seconds / POINTS)

    def take(self, lost, ended, site_rows):
        """Takes a sample if one is due."""
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + self.period
        stale, _, entries = leftovers.entries(self.pid)
        self.rows.append(Sample(now - self.began, private_bytes(self.pid), resident_bytes(self.pid),
                                len(os.listdir(f"/proc/{self.pid}/fd")), len(os.listdir(f"/proc/{self.pid}/task")),
                                entries, sum(stale.values()), lost, ended, site_rows))

    def verdict(self):
        """Returns the figures of the second half and the problems that they show."""
        first, half = self.rows[:len(self.rows) // 2], self.rows[len(self.rows) // 2:]
        span, ended, problems = half[-1].at - half[0].at, half[-1].ended - half[0].ended, []
        grown = max(row.private for row in half) - max(row.private for row in first)
        kept = min(half[-1].ended, KEPT_PROCESSES) - min(half[0].ended, KEPT_PROCESSES)
        kept_rows = min(half[-1].rows, KEPT_ROWS) - min(half[0].rows, KEPT_ROWS)
        # A hash table that doubles, or the symbols of one large program, are steps that look like a leak in a short run.
        flat = FLAT_MB if span >= 60 else STEP_MB
        if grown > flat * 1e6 + (kept * KB_PER_PROCESS + kept_rows * KB_PER_ROW) * 1e3:
            problems.append(f"the tracer's memory grew by {grown / 1e6:.1f} MB in {span:.0f} s, with {ended} processes")
        for field in ("descriptors", "threads"):
            more = slope([(row.at, getattr(row, field)) for row in half]) * span
            if more > FLAT_COUNT:
                problems.append(f"the tracer's {field} grew by {more:.0f} in {span:.0f} s")
        last = self.rows[-1]
        return {"grown_mb": grown / 1e6, "span_s": span, "ended": ended, "kept": kept, "kept_rows": kept_rows, "memory_mb": last.private / 1e6,
                "resident_mb": last.resident / 1e6, "most_descriptors": max(row.descriptors for row in self.rows),
                "most_threads": max(row.threads for row in self.rows),
                "most_entries": max(row.entries for row in self.rows),
                "series": [[round(row.at, 1), round(row.private / 1e6, 2), round(row.resident / 1e6, 2), row.descriptors,
                            row.threads, row.entries, row.stale, row.lost] for row in self.rows]}, problems

    def plot(self, title):
        """Draws the samples as SVG."""
        minutes = [row.at / 60 for row in self.rows]

        def line(values):
            return list(zip(minutes, values))

        return chart.stack(title, [
            chart.lines("Memory", ("minutes", "MB"), {
                "resident": line([row.resident / 1e6 for row in self.rows]),
                "private": line([row.private / 1e6 for row in self.rows])}),
            chart.lines("Open files and threads", ("minutes", "count"), {
                "open files": line([row.descriptors for row in self.rows]),
                "threads": line([row.threads for row in self.rows])}),
            chart.lines("Map entries", ("minutes", "entries"), {
                "all": line([row.entries for row in self.rows]),
                "of exited processes": line([row.stale for row in self.rows])}),
            chart.lines("Programs and losses", ("minutes", "count"), {
                "processes that exited": line([row.ended for row in self.rows]),
                "lost events": line([row.lost for row in self.rows])}),
        ])


def slope(points):
    """Returns the slope of the line that fits the points best, by least squares."""
    middle, mean = (sum(values) / len(points) for values in zip(*points))
    spread = sum((x - middle) ** 2 for x, _ in points) or 1
    return sum((x - middle) * (y - mean) for x, y in points) / spread
