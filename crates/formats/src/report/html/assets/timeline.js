// Memory over time: stacked bands, the peak, and series of other tools.

/** @type {Set<string>} */
const shownLines = new Set();

/** Returns the lines in addition to the bands: series of other tools, and memory that is not in the sum. */
function allLines() {
  const others = data.overlays.map(({ name, points, note }) => ({ name, points, color: themed("text"), note: note ?? "reported by another tool" }));
  const first = seriesOf(state.by).bands.length;
  const separate = data.lines.map(({ kind, pid, points }, index) => {
    const isOne = data.lines.filter((other) => other.kind === kind).length === 1;
    return { name: isOne ? kind : `${kind}, process ${pid}`, points, color: bandColor(first + index), note: "not in the sum" };
  });
  return [...others, ...separate];
}

/** @param {Bands} series @param {number} index */
function bandName(series, index) {
  const band = series.bands[index];
  if (band.rest) return `${countText(band.rest)} others`;
  if (band.site !== undefined) return siteText(band.site);
  return band.pid === undefined ? band.name ?? "" : processText(band.pid);
}

/**
 * Returns the rows that a chart needs: of each column of pixels the lowest, the highest and the last, so
 * that no peak is lost.
 * @param {Bands} series @param {number} from @param {number} to @param {number} columns
 */
function visibleRows(series, from, to, columns) {
  const first = Math.max(0, after(series.times, from) - 1);
  const last = after(series.times, to);
  /** @type {number[]} */
  const rows = [];
  if (last - first <= columns * 3) {
    for (let row = first; row < last; row++) rows.push(row);
    return rows;
  }
  const scale = columns / (to - from);
  let [low, high, end, column] = [first, first, first, -1];
  const flush = () => {
    const [one, other] = low < high ? [low, high] : [high, low];
    rows.push(one);
    if (other !== one) rows.push(other);
    if (end !== other) rows.push(end);
  };
  for (let row = first; row < last; row++) {
    const here = Math.floor((series.times[row] - from) * scale);
    if (here !== column) {
      if (row > first) flush();
      [low, high, column] = [row, row, here];
    }
    if (series.totals[row] < series.totals[low]) low = row;
    if (series.totals[row] > series.totals[high]) high = row;
    end = row;
  }
  flush();
  return rows;
}

const timeline = {
  top() {
    const series = seriesOf(state.by);
    const columns = 1000;
    let maxSize = 0;
    for (const row of visibleRows(series, state.from, state.to, columns)) maxSize = Math.max(maxSize, series.totals[row]);
    for (const line of this.lines()) {
      const { times, sizes } = line.points;
      for (let i = Math.max(0, after(times, state.from) - 1); i < sizes.length && times[i] <= state.to; i++) maxSize = Math.max(maxSize, sizes[i]);
    }
    return maxSize;
  },

  lines() {
    return allLines().filter((line) => shownLines.has(line.name));
  },

  /** @param {CanvasRenderingContext2D} context @param {TimeCanvas} view */
  draw(context, view) {
    const series = seriesOf(state.by);
    const seen = after(series.times, state.to) - after(series.times, state.from);
    if (seen > view.inner) paintDense(context, view, series, chosenBand(series));
    else this.shapes(context, view, series);
    for (const line of this.lines()) this.line(context, view, line);
    this.phases(context, view);
    this.peak(context, view);
  },

  /** Draws bands as shapes, for at most one row per pixel. @param {CanvasRenderingContext2D} context @param {TimeCanvas} view @param {Bands} series */
  shapes(context, view, series) {
    const rows = visibleRows(series, state.from, state.to, Math.floor(view.inner));
    const width = series.bands.length;
    const base = new Float64Array(rows.length);
    const xs = rows.map((row) => clamp(view.x(series.times[row]), view.pad.left - 2, view.width + 2));
    const end = Math.min(view.x(data.span[1]), view.width);
    const chosen = chosenBand(series);
    for (let band = 0; band < width && rows.length > 0; band++) {
      context.beginPath();
      this.edge(context, view, xs, base, end);
      for (let i = 0; i < rows.length; i++) base[i] += series.values[rows[i] * width + band];
      this.backEdge(context, view, xs, base, end);
      context.closePath();
      context.globalAlpha = chosen === null || chosen === band ? 0.92 : 0.22;
      context.fillStyle = bandColor(band, !!series.bands[band].rest);
      context.fill();
    }
    context.globalAlpha = 1;
    if (rows.length > 0) {
      context.beginPath();
      this.edge(context, view, xs, base, end);
      [context.strokeStyle, context.lineWidth] = [themed("text"), 1];
      context.globalAlpha = 0.35;
      context.stroke();
      context.globalAlpha = 1;
    }
  },

  /** @param {CanvasRenderingContext2D} context @param {TimeCanvas} view @param {number[]} xs @param {ArrayLike<number>} sizes @param {number} end */
  edge(context, view, xs, sizes, end) {
    let y = view.y(0);
    context.moveTo(xs[0], y);
    for (let i = 0; i < xs.length; i++) {
      context.lineTo(xs[i], y);
      y = view.y(sizes[i]);
      context.lineTo(xs[i], y);
    }
    context.lineTo(Math.max(end, xs[xs.length - 1]), y);
  },

  /** @param {CanvasRenderingContext2D} context @param {TimeCanvas} view @param {number[]} xs @param {ArrayLike<number>} sizes @param {number} end */
  backEdge(context, view, xs, sizes, end) {
    context.lineTo(Math.max(end, xs[xs.length - 1]), view.y(sizes[xs.length - 1]));
    for (let i = xs.length - 1; i >= 0; i--) {
      context.lineTo(xs[i], view.y(sizes[i]));
      context.lineTo(xs[i], view.y(i > 0 ? sizes[i - 1] : 0));
    }
  },

  /** @param {CanvasRenderingContext2D} context @param {TimeCanvas} view @param {{ points: Points, color: string }} line */
  line(context, view, { points, color }) {
    const { times, sizes } = points;
    context.beginPath();
    let begun = false;
    for (let i = Math.max(0, after(times, state.from) - 1); i < times.length; i++) {
      const [x, y] = [view.x(times[i]), view.y(sizes[i])];
      if (begun) context.lineTo(x, y);
      else context.moveTo(x, y);
      begun = true;
      if (times[i] > state.to) break;
    }
    [context.strokeStyle, context.lineWidth] = [color, 1.5];
    context.setLineDash([5, 3]);
    context.stroke();
    context.setLineDash([]);
  },

  /** Draws where phases begin, bars for their lengths, and labels where there is room. @param {CanvasRenderingContext2D} context @param {TimeCanvas} view */
  phases(context, view) {
    [context.strokeStyle, context.fillStyle, context.lineWidth] = [themed("dim"), themed("dim"), 1];
    [context.textAlign, context.textBaseline] = ["left", "top"];
    let free = view.pad.left;
    for (const { label, begin, end } of data.phases) {
      if (begin > state.to || (end ?? begin) < state.from) continue;
      const x = Math.max(view.x(begin), view.pad.left);
      if (begin >= state.from) {
        context.setLineDash([2, 4]);
        context.beginPath();
        context.moveTo(x, view.pad.top);
        context.lineTo(x, view.height - view.pad.bottom);
        context.stroke();
        context.setLineDash([]);
      }
      if (end !== null) context.fillRect(x, view.pad.top - 3, Math.max(1, Math.min(view.x(end), view.width - view.pad.right) - x), 3);
      const wide = context.measureText(label).width;
      if (x >= free && x + wide < view.width) {
        context.fillText(label, x, 2);
        free = x + wide + 8;
      }
    }
  },

  /** Returns the labels of the phases at a time: ranges, and the newest point of each process. @param {number} time */
  phasesAt(time) {
    const points = new Map();
    const ranges = [];
    for (const phase of data.phases) {
      if (phase.begin > time || (phase.end !== null && phase.end < time)) continue;
      if (phase.end === null) points.set(phase.pid, phase.label);
      else ranges.push(phase.label);
    }
    return [...points.values(), ...ranges].slice(-4);
  },

  /** @param {CanvasRenderingContext2D} context @param {TimeCanvas} view */
  peak(context, view) {
    const { bytes, ns } = data.peak;
    if (bytes === 0 || ns < state.from || ns > state.to) return;
    const [x, y] = [view.x(ns), view.y(bytes)];
    [context.strokeStyle, context.fillStyle, context.lineWidth] = [themed("alarm"), themed("alarm"), 1];
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(view.pad.left, y);
    context.lineTo(view.width - view.pad.right, y);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.arc(x, y, 3.5, 0, 7);
    context.fill();
    const text = `peak ${sizeText(bytes)} at ${timeText(ns)}`;
    const right = x + context.measureText(text).width + 12 < view.width;
    [context.textAlign, context.textBaseline] = [right ? "left" : "right", "bottom"];
    // Legible over bands and lines.
    [context.strokeStyle, context.lineWidth, context.lineJoin] = [themed("panel"), 4, "round"];
    context.strokeText(text, x + (right ? 8 : -8), y - 3);
    context.fillText(text, x + (right ? 8 : -8), y - 3);
  },

  /** @param {number} time */
  row(time) {
    const series = seriesOf(state.by);
    const row = after(series.times, time) - 1;
    return { series, row };
  },

  /** @param {number} time @param {number} size */
  at(time, size) {
    const { series, row } = this.row(time);
    const total = row < 0 ? 0 : series.totals[row];
    const lines = [tipLine(timeText(time, (state.to - state.from) / 2000)), tipLine("all: ", sizeText(total))];
    for (const label of this.phasesAt(time)) lines.push(el("div", { class: "name" }, label));
    for (const line of this.lines()) {
      const i = after(line.points.times, time) - 1;
      if (i >= 0) lines.push(tipLine(swatch(line.color, true), `${line.name}: ${sizeText(line.points.sizes[i])}`));
    }
    if (row < 0 || size > total || size < 0) return { lines };
    const width = series.bands.length;
    let sum = 0;
    for (let band = 0; band < width; band++) {
      const bytes = series.values[row * width + band];
      sum += bytes;
      if (size <= sum && bytes > 0) {
        const color = bandColor(band, !!series.bands[band].rest);
        lines.push(el("div", { class: "name" }, swatch(color), bandName(series, band)), tipLine(`${sizeText(bytes)}, ${shareText(bytes, total)}`));
        return { lines, pick: () => pickBand(series, band, time) };
      }
    }
    return { lines };
  },

  /** @param {number} time */
  describe(time) {
    const { series, row } = this.row(time);
    if (row < 0) return { text: `${timeText(time)}: nothing yet` };
    const width = series.bands.length;
    let best = 0;
    for (let band = 1; band < width; band++) {
      if (series.values[row * width + band] > series.values[row * width + best]) best = band;
    }
    const text = `${timeText(time)}: ${sizeText(series.totals[row])}; most of it ${bandName(series, best)}, ${sizeText(series.values[row * width + best])}`;
    return { text, pick: () => pickBand(series, best, time) };
  },
};

/** @param {Bands} series */
function chosenBand(series) {
  if (state.band && state.band.by === series.by) return state.band.index;
  if (!state.site || series.by !== "site") return null;
  const found = series.bands.findIndex((band) => band.site === state.site);
  if (found >= 0) return found;
  const rest = series.bands.findIndex((band) => band.rest);
  return rest >= 0 ? rest : null;
}

/** @param {Bands} series @param {number} index @param {number} time */
function pickBand(series, index, time) {
  const band = series.bands[index];
  if (band.site) pickSite(band.site);
  else change({ band: { by: series.by, index, name: bandName(series, index), time }, site: 0, life: null, block: null });
}

function drawLegend() {
  const series = seriesOf(state.by);
  const chosen = chosenBand(series);
  const items = series.bands.map((band, index) => el("button", {
    type: "button", "aria-pressed": chosen === index, onclick: () => (chosen === index ? change({ site: 0, band: null }) : pickBand(series, index, data.peak.ns)),
  }, swatch(bandColor(index, !!band.rest)), el("span", { class: "name", title: bandName(series, index) }, bandName(series, index)), el("span", { class: "size" }, sizeText(legendSize(series, index)))));
  for (const { name, color, note } of allLines()) {
    const flip = () => {
      if (!shownLines.delete(name)) shownLines.add(name);
      timelineCanvas.redraw();
      drawLegend();
    };
    items.push(el("button", { type: "button", "aria-pressed": shownLines.has(name), onclick: flip }, swatch(color, true), el("span", { class: "name" }, name), el("span", { class: "size" }, note)));
  }
  byId("legend").replaceChildren(...items);
}

/** Fills the table with the values of the chart, for screen readers. */
function timelineTable() {
  const holder = /** @type {HTMLDetailsElement} */ (byId("timeline-table"));
  if (!holder.open) return;
  const series = seriesOf(state.by);
  const width = series.bands.length;
  const head = el("tr", {}, el("th", {}, "time"), el("th", { class: "n" }, "all"), ...series.bands.map((_, band) => el("th", { class: "n" }, bandName(series, band).slice(0, 40))));
  const body = [];
  for (let i = 0; i <= 24; i++) {
    const time = state.from + ((state.to - state.from) * i) / 24;
    const row = after(series.times, time) - 1;
    /** @param {number} bytes */
    const cell = (bytes) => el("td", { class: "n" }, sizeText(bytes));
    body.push(el("tr", {}, el("td", {}, timeText(time, (state.to - state.from) / 100)), cell(row < 0 ? 0 : series.totals[row]),
      ...series.bands.map((_, band) => cell(row < 0 ? 0 : series.values[row * width + band]))));
  }
  holder.querySelector("div")?.replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
}

/** @type {TimeCanvas} */
let timelineCanvas;

/** Describes the chart to screen readers. */
function timelineLabel() {
  return `Memory over time. The peak is ${sizeText(data.peak.bytes)} at ${timeText(data.peak.ns)}. Plus and minus zoom, arrows move, Shift and arrows move a cursor, Enter picks. A table follows.`;
}

function startTimeline() {
  for (const overlay of data.overlays) shownLines.add(overlay.name);
  timelineCanvas = new TimeCanvas(byId("timeline-stage"), timelineLabel(), timeline);
  const group = byId("by-group");
  const buttons = data.series.map(({ by }) => el("button", { type: "button", role: "radio", "data-by": by, onclick: () => change({ by, band: null, site: by === "site" ? state.site : 0 }) }, by));
  group.append("bands by ", ...buttons);
  const mark = () => buttons.forEach((button) => button.setAttribute("aria-checked", String(button.dataset.by === state.by)));
  watch("by", mark);
  mark();
  watch("from to by site band theme clock chart", () => {
    timelineCanvas.redraw();
    timelineTable();
  });
  watch("by site band theme", drawLegend);
  byId("timeline-table").addEventListener("toggle", timelineTable);
  drawLegend();
}
