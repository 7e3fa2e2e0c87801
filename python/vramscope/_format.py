"""Sizes as text, and measurements as SVG."""

import re
from collections.abc import Sequence
from html import escape

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_CHART = (640, 140)
_MARGIN = 8


def format_size(size: int) -> str:
    """Returns a size in binary units: ``1.5 MiB``."""
    value, sign = float(abs(size)), "-" if size < 0 else ""
    if value < 1024:
        return f"{sign}{int(value)} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1023.95 or unit == "TiB":
            break
    return f"{sign}{value:.1f} {unit}"


def parse_size(text: int | str) -> int:
    """Returns the bytes of a size such as ``2 GiB``, ``512M`` or ``1048576``; units are binary.

    :raises ValueError: if it is not a size.
    """
    if isinstance(text, int) and text >= 0:
        return text
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r}: not a size; use a number and a unit, such as '2 GiB'")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def chart(timeline: Sequence[tuple[int, int]], title: str) -> str:
    """Returns an SVG of memory by time; each value holds from its time on."""
    width, height = _CHART
    end = max((at for at, _ in timeline), default=0) or 1
    top = max((size for _, size in timeline), default=0) or 1
    inner = (width - 2 * _MARGIN, height - 3 * _MARGIN - 14)

    def x(at: int) -> float:
        return _MARGIN + inner[0] * at / end

    def y(size: int) -> float:
        return height - _MARGIN - inner[1] * size / top

    path = [f"M{x(0):.1f},{y(0):.1f}"]
    level = 0
    for at, size in timeline:
        path.append(f"L{x(at):.1f},{y(level):.1f}L{x(at):.1f},{y(size):.1f}")
        level = size
    path.append(f"L{x(end):.1f},{y(0):.1f}Z")
    label = f"{title}: {format_size(top if timeline else 0)} peak, {end / 1e9:.3g} s"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
        f"<title>{escape(label)}</title>"
        f'<text x="{_MARGIN}" y="16" font-family="sans-serif" font-size="12" fill="currentColor">{escape(label)}</text>'
        f'<path d="{"".join(path)}" fill="#4c78a8" fill-opacity="0.6" stroke="#4c78a8"/></svg>'
    )
