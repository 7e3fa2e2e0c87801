// Canvases: sharp on every screen, in the colors of the theme; and charts with a time axis.

const PALETTE = {
  light: ["#3b6fd4", "#e08a2e", "#3f9c6b", "#9a62c7", "#d2504c", "#2a9fb0", "#b98a1f", "#d0649a", "#6b7f2e", "#7a6a5c",
    "#5d8df0", "#f0a860", "#6bbf8f", "#b98ae0", "#e57f79", "#5fc2cf", "#d3ae55", "#e291bb", "#97a95a", "#a39484",
    "#1f4a9e", "#a85f12", "#216b45", "#6c3c96"],
  dark: ["#6f9cf5", "#f0a458", "#5fc48f", "#ba8be8", "#ee7a72", "#4fc1d2", "#d8ac47", "#ea8bbd", "#a0b85a", "#b3a28f",
    "#4a78d6", "#c97f33", "#3f9c6b", "#9465c4", "#c9544d", "#2f98a8", "#ad8526", "#c2639a", "#7c9138", "#8c7b69",
    "#9dbcff", "#ffc78d", "#8fe0b6", "#d6b5fa"],
};

const isDark = () => document.documentElement.dataset.theme === "dark";

/** Returns the color of a band; the rest is gray. @param {number} index */
function bandColor(index, isRest = false) {
  if (isRest) return isDark() ? "#566074" : "#b4bac6";
  const palette = isDark() ? PALETTE.dark : PALETTE.light;
  return palette[index % palette.length];
}

/** Returns the color of a site: by its rank by size, so that it is the same everywhere. @param {number} site */
function siteColor(site) {
  if (!data.site_order) data.site_order = new Map(data.sites.rows.map((row, index) => [row[0], index]));
  const index = data.site_order.get(site);
  return index === undefined ? bandColor(0, true) : bandColor(index);
}

/** @param {string} name */
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

/** @param {HTMLCanvasElement} canvas */
function contextOf(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("no canvas");
  return context;
}

/** Sets the canvas to the screen's resolution, and clears it. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
function prepare(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [wide, high] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const context = contextOf(canvas);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  return context;
}

/** Shows the tooltip near a point of the window. @param {number} x @param {number} y @param {...Node} content */
function showTip(x, y, ...content) {
  const tip = byId("tip");
  tip.replaceChildren(...content);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${clamp(x + 14, 4, window.innerWidth - width - 4)}px`;
  tip.style.top = `${y + 18 + height > window.innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

/** @param {string} color */
const swatch = (color, line = false) => el("span", { class: line ? "swatch line" : "swatch", style: { background: color } });

/** @param {...Child} content */
const tipLine = (...content) => el("div", {}, ...content);

/** Returns the time range of the file, at least 1 µs. @returns {[number, number]} */
function wholeTime() {
  const [from, to] = data.span;
  return [from, Math.max(to, from + 1000)];
}

/** @param {number} from @param {number} to */
function zoomTo(from, to) {
  const [first, last] = wholeTime();
  const span = clamp(to - from, 100, last - first);
  const begin = clamp(from, first, last - span);
  change({ from: begin, to: begin + span });
}

/** Zooms by a factor around a time. @param {number} factor */
function zoomBy(factor, around = (state.from + state.to) / 2) {
  const span = (state.to - state.from) * factor;
  zoomTo(around - ((around - state.from) / (state.to - state.from)) * span, around + ((state.to - around) / (state.to - state.from)) * span);
}

/** @param {number} part */
function panBy(part) {
  const by = (state.to - state.from) * part;
  zoomTo(state.from + by, state.to + by);
}

/**
 * A chart with a time axis, a cursor, zoom and pan. Of its painter, `top()` returns the largest size,
 * `draw(context, view)` paints the inside, `at(time, size)` returns `{lines, pick}` for the item under the
 * pointer, and `describe(time)` returns `{text, pick}` for screen readers.
 */
class TimeCanvas {
  /** @param {HTMLElement} stage @param {string} label @param {Painter} painter */
  constructor(stage, label, painter) {
    this.stage = stage;
    this.painter = painter;
    this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": label });
    this.cursor = el("canvas", { class: "cursor", "aria-hidden": "true" });
    stage.append(this.canvas, this.cursor);
    this.pad = { left: 66, right: 12, top: 18, bottom: 26 };
    this.pending = false;
    this.maxSize = 1;
    this.cursorTime = -1;
    this.listen();
    new ResizeObserver(() => this.redraw()).observe(stage);
  }

  get width() { return this.stage.clientWidth; }
  get height() { return this.stage.clientHeight; }
  get inner() { return Math.max(1, this.width - this.pad.left - this.pad.right); }
  /** @param {number} time */
  x(time) { return this.pad.left + ((time - state.from) / (state.to - state.from)) * this.inner; }
  /** @param {number} x */
  time(x) { return state.from + ((x - this.pad.left) / this.inner) * (state.to - state.from); }
  /** @param {number} size */
  y(size) { return this.pad.top + (1 - size / this.maxSize) * (this.height - this.pad.top - this.pad.bottom); }
  /** @param {number} y */
  size(y) { return (1 - (y - this.pad.top) / (this.height - this.pad.top - this.pad.bottom)) * this.maxSize; }

  /** Paints with the next frame of the screen, at most once per frame. */
  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (this.width === 0) return;
      this.paint();
      this.point(null);
    });
  }

  paint() {
    const context = prepare(this.canvas, this.width, this.height);
    this.maxSize = Math.max(1, this.painter.top(this) * 1.04);
    this.axes(context);
    context.save();
    context.beginPath();
    context.rect(this.pad.left, 0, this.inner, this.height - this.pad.bottom);
    context.clip();
    this.painter.draw(context, this);
    context.restore();
  }

  /** @param {CanvasRenderingContext2D} context */
  axes(context) {
    const bottom = this.height - this.pad.bottom;
    [context.strokeStyle, context.fillStyle, context.lineWidth] = [themed("grid"), themed("dim"), 1];
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const size of sizeSteps(this.maxSize, Math.max(2, this.height / 60))) {
      const y = Math.round(this.y(size)) + 0.5;
      context.beginPath();
      context.moveTo(this.pad.left, y);
      context.lineTo(this.width - this.pad.right, y);
      context.stroke();
      context.fillText(axisText(size), this.pad.left - 8, y);
    }
    const { list, step } = timeSteps(state.from, state.to, this.inner / 110);
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const time of list) {
      const x = Math.round(this.x(time)) + 0.5;
      context.beginPath();
      context.moveTo(x, bottom);
      context.lineTo(x, bottom + 4);
      context.stroke();
      const text = timeText(time, step);
      const half = context.measureText(text).width / 2;
      if (x + half < this.width && x - half > 0) context.fillText(text, x, bottom + 8);
    }
  }

  /** Draws the cursor at a time, or the selected time range; nothing for null. @param {number | null} time @param {number | null} until */
  point(time, until = null) {
    const context = prepare(this.cursor, this.width, this.height);
    if (time === null) return;
    const bottom = this.height - this.pad.bottom;
    if (until !== null) {
      context.fillStyle = themed("accent");
      context.globalAlpha = 0.16;
      context.fillRect(this.x(time), this.pad.top, this.x(until) - this.x(time), bottom - this.pad.top);
      return;
    }
    context.strokeStyle = themed("text");
    context.globalAlpha = 0.55;
    const x = Math.round(this.x(time)) + 0.5;
    context.beginPath();
    context.moveTo(x, this.pad.top);
    context.lineTo(x, bottom);
    context.stroke();
  }

  /** @param {number} x @param {number} y */
  isInside(x, y) {
    return x >= this.pad.left && x <= this.width - this.pad.right && y <= this.height - this.pad.bottom;
  }

  listen() {
    /** @type {{ x: number, last: number, pans: boolean } | null} */
    let drag = null;
    /** @param {MouseEvent} event */
    const position = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button > 1) return;
      const [x] = position(event);
      drag = { x, last: x, pans: event.shiftKey || event.button === 1 };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const [x, y] = position(event);
      if (drag && drag.pans) {
        panBy((drag.last - x) / this.inner);
        drag.last = x;
      } else if (drag && Math.abs(x - drag.x) > 4) {
        hideTip();
        this.point(this.time(clamp(drag.x, this.pad.left, this.pad.left + this.inner)), this.time(clamp(x, this.pad.left, this.pad.left + this.inner)));
      } else this.hover(x, y, event);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const [x, y] = position(event);
      const was = drag;
      drag = null;
      if (!was || was.pans) return;
      if (Math.abs(x - was.x) > 4) {
        const ends = [this.time(was.x), this.time(x)].sort((one, other) => one - other);
        zoomTo(ends[0], ends[1]);
      } else if (this.isInside(x, y)) {
        const found = this.painter.at(this.time(x), this.size(y), this);
        if (found && found.pick) found.pick();
      }
    });
    this.canvas.addEventListener("pointerleave", () => {
      hideTip();
      if (!drag) this.point(null);
    });
    this.canvas.addEventListener("dblclick", () => zoomTo(...wholeTime()));
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const [x] = position(event);
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) panBy((event.deltaX || event.deltaY) / 1000);
      else zoomBy(Math.exp(clamp(event.deltaY, -200, 200) / 400), this.time(x));
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** @param {number} x @param {number} y @param {MouseEvent} event */
  hover(x, y, event) {
    if (!this.isInside(x, y)) {
      hideTip();
      this.point(null);
      return;
    }
    const time = this.time(x);
    this.point(time);
    const found = this.painter.at(time, this.size(y), this);
    if (found) showTip(event.clientX, event.clientY, ...found.lines);
    else hideTip();
  }

  /** Shift and arrows move a cursor that is announced; Enter picks the largest item at it. @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    /** @type {Record<string, () => void>} */
    const keys = {
      "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), "_": () => zoomBy(2), "0": () => zoomTo(...wholeTime()),
      ArrowLeft: () => panBy(-0.2), ArrowRight: () => panBy(0.2), ArrowUp: () => zoomBy(0.5), ArrowDown: () => zoomBy(2),
      Home: () => zoomTo(wholeTime()[0], wholeTime()[0] + state.to - state.from),
      End: () => zoomTo(wholeTime()[1] - (state.to - state.from), wholeTime()[1]),
      Escape: () => change({ site: 0, band: null, life: null }),
    };
    /** @type {Record<string, number>} */
    const moves = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.shiftKey && moves[event.key]) this.walk(moves[event.key]);
    else if (event.key === "Enter") this.walk(0, true);
    else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  }

  /** @param {number} by */
  walk(by, picks = false) {
    const span = state.to - state.from;
    const now = this.cursorTime >= state.from && this.cursorTime <= state.to ? this.cursorTime : (state.from + state.to) / 2;
    this.cursorTime = clamp(now + (by * span) / 50, state.from, state.to);
    this.point(this.cursorTime);
    const item = this.painter.describe(this.cursorTime);
    announce(item.text);
    if (picks && item.pick) item.pick();
  }
}
