"""Line charts as SVG: axes with units, a legend, a title. Nothing else is needed to look at them."""
import math
from xml.sax.saxutils import escape

COLOURS = ["#1b6ca8", "#d1495b", "#3c8d2f", "#8c5fb8", "#c77d0a", "#444444", "#2a9d8f", "#a0522d"]
DASHES = ["", "6 3", "2 2", "8 3 2 3"]
WIDTH, HEIGHT = 860, 380
LEFT, TOP, BOTTOM = 74, 46, 54


def steps(low, high, wanted=6):
    """Round numbers between two others."""
    if high <= low:
        high = low + 1
    raw = (high - low) / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.floor(low / step)
    return [step * i for i in range(first, math.ceil(high / step - 1e-9) + 1)]


def powers(low, high):
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high) - 1e-9)
    return [10.0 ** i for i in range(first, max(last, first + 1) + 1)]


def number(value):
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:g} M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g} k"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


class Axis:
    def __init__(self, values, start, end, log):
        self.log = log
        values = [value for value in values if not log or value > 0] or [1]
        if log:
            self.ticks = powers(min(values), max(values))
        else:
            self.ticks = steps(min(0, *values, 0), max(values))
        self.low, self.high = self.ticks[0], self.ticks[-1]
        self.start, self.end = start, end

    def at(self, value):
        if self.log:
            value = max(value, self.low)
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * part


def text(x, y, words, anchor="middle", size=12, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" {extra}>{escape(words)}</text>'


def grid(across, up, labels):
    """The two axes, their lines, their numbers and what they are."""
    bottom, right = HEIGHT - BOTTOM, across.end
    parts = []
    for tick in across.ticks:
        x = across.at(tick)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#e4e4e4"/>')
        parts.append(text(x, bottom + 17, number(tick)))
    for tick in up.ticks:
        y = up.at(tick)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        parts.append(text(LEFT - 7, y + 4, number(tick), "end"))
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#555"/>')
    parts.append(text((LEFT + right) / 2, HEIGHT - 14, labels[0], size=13))
    middle = (TOP + bottom) / 2
    parts.append(text(18, middle, labels[1], size=13, extra=f'transform="rotate(-90 18 {middle:.1f})"'))
    return parts


def legend_width(names):
    return max(len(name) for name in names) * 6.7 + 60


def legend(names, left):
    """Beside the lines, where it hides none."""
    parts = []
    for rank, name in enumerate(names):
        y = TOP + 14 + rank * 20
        parts.append(f'<line x1="{left + 14:.0f}" y1="{y - 4}" x2="{left + 40:.0f}" y2="{y - 4}" {stroke(rank)}/>')
        parts.append(text(left + 46, y, name, "start"))
    return parts


def stroke(rank):
    dash = DASHES[rank // len(COLOURS) % len(DASHES)]
    return (f'stroke="{COLOURS[rank % len(COLOURS)]}" stroke-width="2" fill="none"'
            + (f' stroke-dasharray="{dash}"' if dash else ""))


def lines(title, labels, series, log_x=False, log_y=False, dots=False):
    """An SVG of named lines: {name: [(x, y), …]}; labels are those of the two axes, with units."""
    series = {name: points for name, points in series.items() if points}
    if not series:
        raise ValueError(f"{title}: there is nothing to draw")
    points = [point for line in series.values() for point in line]
    right = WIDTH - legend_width(series)
    across = Axis([x for x, _ in points], LEFT, right, log_x)
    up = Axis([y for _, y in points], HEIGHT - BOTTOM, TOP, log_y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" fill="#222">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(WIDTH / 2, 24, title, size=15, extra='font-weight="bold"'),
    ]
    parts += grid(across, up, labels)
    for rank, line in enumerate(series.values()):
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" {stroke(rank)}/>')
        if dots or len(line) == 1:
            parts += [f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="3" fill="{COLOURS[rank % len(COLOURS)]}"/>'
                      for x, y in line]
    parts += legend(list(series), right)
    parts.append("</svg>\n")
    return "\n".join(parts)
