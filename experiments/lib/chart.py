"""Line charts as self-contained SVG: axes with units, a legend, a title."""
import math
from xml.sax.saxutils import escape

COLORS = ["#1b6ca8", "#d1495b", "#3c8d2f", "#8c5fb8", "#c77d0a", "#444444", "#2a9d8f", "#a0522d"]
DASHES = ["", "6 3", "2 2", "8 3 2 3"]
WIDTH, HEIGHT = 860, 380
LEFT, TOP, BOTTOM = 74, 46, 54


def linear_ticks(low, high, count=6):
    """Returns about `count` round numbers that span a range."""
    if high <= low:
        high = low + 1
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.floor(low / step)
    return [step * i for i in range(first, math.ceil(high / step - 1e-9) + 1)]


def log_ticks(low, high):
    """Returns the powers of ten that span a range."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high) - 1e-9)
    return [10.0 ** i for i in range(first, max(last, first + 1) + 1)]


def format_number(value):
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
            self.ticks = log_ticks(min(values), max(values))
        else:
            self.ticks = linear_ticks(min(0, *values, 0), max(values))
        self.low, self.high = self.ticks[0], self.ticks[-1]
        self.start, self.end = start, end

    def at(self, value):
        if self.log:
            value = max(value, self.low)
            fraction = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            fraction = (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * fraction


def text(x, y, label, anchor="middle", size=12, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" {extra}>{escape(label)}</text>'


def grid(x_axis, y_axis, labels):
    """Returns the two axes with grid lines, tick labels and axis labels."""
    bottom, right = HEIGHT - BOTTOM, x_axis.end
    parts = []
    for tick in x_axis.ticks:
        x = x_axis.at(tick)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#e4e4e4"/>')
        parts.append(text(x, bottom + 17, format_number(tick)))
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        parts.append(text(LEFT - 7, y + 4, format_number(tick), "end"))
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#555"/>')
    parts.append(text((LEFT + right) / 2, HEIGHT - 14, labels[0], size=13))
    middle = (TOP + bottom) / 2
    parts.append(text(18, middle, labels[1], size=13, extra=f'transform="rotate(-90 18 {middle:.1f})"'))
    return parts


def legend_width(names):
    return max(len(name) for name in names) * 6.7 + 60


def legend(names, left):
    """Returns the legend, to the right of the plot."""
    parts = []
    for rank, name in enumerate(names):
        y = TOP + 14 + rank * 20
        parts.append(f'<line x1="{left + 14:.0f}" y1="{y - 4}" x2="{left + 40:.0f}" y2="{y - 4}" {stroke(rank)}/>')
        parts.append(text(left + 46, y, name, "start"))
    return parts


def stroke(rank):
    dash = DASHES[rank // len(COLORS) % len(DASHES)]
    return (f'stroke="{COLORS[rank % len(COLORS)]}" stroke-width="2" fill="none"'
            + (f' stroke-dasharray="{dash}"' if dash else ""))


def head(title, height, baseline, size):
    """Returns the start of an SVG: background and title."""
    style = 'font-family="Helvetica, Arial, sans-serif" fill="#222"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" {style}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        text(WIDTH / 2, baseline, title, size=size, extra='font-weight="bold"'),
    ]


def lines(title, labels, series, log_x=False, log_y=False, dots=False):
    """Draws named lines, {name: [(x, y), …]}; `labels` are those of the two axes, with units."""
    series = {name: points for name, points in series.items() if points}
    if not series:
        raise ValueError(f"{title}: nothing to draw")
    points = [point for line in series.values() for point in line]
    right = WIDTH - legend_width(series)
    x_axis = Axis([x for x, _ in points], LEFT, right, log_x)
    y_axis = Axis([y for _, y in points], HEIGHT - BOTTOM, TOP, log_y)
    parts = [*head(title, HEIGHT, 24, 15), *grid(x_axis, y_axis, labels)]
    for rank, line in enumerate(series.values()):
        path = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" {stroke(rank)}/>')
        if dots or len(line) == 1:
            parts += [f'<circle cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}" r="3" fill="{COLORS[rank % len(COLORS)]}"/>'
                      for x, y in line]
    parts += legend(list(series), right)
    parts.append("</svg>\n")
    return "\n".join(parts)


def stack(title, charts):
    """Puts charts below each other, under one title, into one SVG."""
    height = TOP + len(charts) * HEIGHT
    moved = [f'<g transform="translate(0 {TOP + rank * HEIGHT})">\n{chart}</g>' for rank, chart in enumerate(charts)]
    return "\n".join([*head(title, height, 28, 17), *moved, "</svg>\n"])
