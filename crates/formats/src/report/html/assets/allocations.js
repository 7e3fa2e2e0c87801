// Single allocations: each is a shape as high as its size and as long as its lifetime. When one ends,
// those above it move down.

/** Maximum number of corners of all shapes together. */
const CORNERS = 1500000;

/** Stacks the allocations; returns whether that takes few enough corners. @param {Life[]} lives */
function layOut(lives) {
  /** @type {[number, number, Life][]} */
  const changes = [];
  for (const life of lives) {
    changes.push([life.began, 1, life]);
    if (life.ended !== null) changes.push([life.ended, 0, life]);
  }
  // At the same time, ends come first, but no end before its own start.
  changes.sort((one, other) => one[0] - other[0] || (one[2].began === one[2].ended || other[2].began === other[2].ended ? other[1] - one[1] : one[1] - other[1]));
  /** @type {Life[]} */
  const stack = [];
  let [height, corners] = [0, 0];
  for (const [time, begins, life] of changes) {
    if (begins) {
      life.times = [time];
      life.offsets = [height];
      height += life.bytes;
      stack.push(life);
      corners++;
    } else {
      const index = stack.lastIndexOf(life);
      if (index < 0) continue;
      stack.splice(index, 1);
      height -= life.bytes;
      for (let above = index; above < stack.length; above++) {
        const { times, offsets } = stack[above];
        const offset = offsets[offsets.length - 1] - life.bytes;
        if (times[times.length - 1] === time) offsets[offsets.length - 1] = offset;
        else {
          times.push(time);
          offsets.push(offset);
          corners++;
        }
      }
      if (corners > CORNERS) return false;
    }
  }
  return true;
}

const livesView = {
  /** @type {Life[] | null} */
  all: null,

  /** Lays out the largest allocations that can be drawn; fewer if they have too many corners. */
  lives() {
    if (this.all) return this.all;
    const biggest = [...livesOf()].sort((one, other) => other.bytes - one.bytes);
    let lives = biggest;
    for (let count = biggest.length; ; count = Math.floor(count / 2)) {
      lives = biggest.slice(0, count).sort((one, other) => one.began - other.began);
      if (layOut(lives) || count === 0) break;
    }
    this.all = lives;
    const rest = data.allocations.total - lives.length;
    const drawn = some(lives.length, "allocation");
    byId("lives-note").textContent = rest > 0 ? `The largest: ${drawn}. The other ${countText(rest)} are the gray band on top.` : `${drawn}, all drawn, largest first.`;
    return lives;
  },

  top() {
    return timeline.top.call({ lines: () => [] });
  },

  /** @param {CanvasRenderingContext2D} context @param {TimeCanvas} view */
  draw(context, view) {
    const lives = this.lives();
    const series = seriesOf("kind");
    const rows = visibleRows(series, state.from, state.to, Math.floor(view.inner));
    if (rows.length === 0) return;
    const xs = rows.map((row) => clamp(view.x(series.times[row]), view.pad.left - 2, view.width + 2));
    const end = Math.min(view.x(data.span[1]), view.width);
    context.beginPath();
    timeline.edge(context, view, xs, rows.map((row) => series.totals[row]), end);
    context.lineTo(Math.max(end, xs[xs.length - 1]), view.y(0));
    context.closePath();
    context.fillStyle = bandColor(0, true);
    context.fill();
    const border = themed("panel");
    for (const life of lives) {
      if (life.began > state.to || (life.ended ?? Infinity) < state.from) continue;
      this.shape(context, view, life, border);
    }
    context.globalAlpha = 1;
    timeline.peak(context, view);
  },

  /** @param {CanvasRenderingContext2D} context @param {TimeCanvas} view @param {Life} life @param {string} border */
  shape(context, view, life, border) {
    const until = life.ended ?? data.span[1];
    const high = view.y(0) - view.y(life.bytes);
    if (high < 0.15) return;
    const { times, offsets } = life;
    const from = Math.max(0, after(times, state.from) - 1);
    const to = Math.max(from, after(times, state.to) - 1);
    const right = clamp(view.x(until), view.pad.left - 2, view.width + 2);
    context.beginPath();
    for (let i = from; i <= to; i++) {
      const x = clamp(view.x(times[i]), view.pad.left - 2, view.width + 2);
      const next = i < to ? clamp(view.x(times[i + 1]), view.pad.left - 2, view.width + 2) : right;
      const y = view.y(offsets[i] + life.bytes);
      context.rect(x, y, Math.max(next - x, 0.6), high);
    }
    const isChosen = state.life === life || (state.site && state.site === life.site && !state.life);
    context.globalAlpha = state.life || state.site ? (isChosen ? 1 : 0.25) : 0.95;
    context.fillStyle = isFound(life.site) ? siteColor(life.site) : bandColor(0, true);
    context.fill();
    if (high > 3 && right - view.x(life.began) > 3 && to - from < 50) {
      [context.strokeStyle, context.lineWidth] = [border, 0.6];
      context.stroke();
    }
  },

  /** @param {number} time @param {number} size */
  find(time, size) {
    for (const life of this.lives()) {
      if (life.began > time || (life.ended ?? Infinity) <= time) continue;
      const offset = life.offsets[Math.max(0, after(life.times, time) - 1)];
      if (size >= offset && size < offset + life.bytes) return life;
    }
    return null;
  },

  /** @param {number} time @param {number} size */
  at(time, size) {
    const life = this.find(time, size);
    const lines = [tipLine(timeText(time, (state.to - state.from) / 2000))];
    if (!life) {
      const { series, row } = timeline.row(time);
      if (row < 0 || size > series.totals[row]) return { lines };
      lines.push(tipLine("smaller allocations, together"));
      return { lines };
    }
    lines.push(el("div", { class: "name" }, swatch(siteColor(life.site)), siteText(life.site)));
    lines.push(tipLine(`${sizeText(life.bytes)}, ${life.kind}, ${deviceText(life.device)}, process ${processText(life.pid)}`));
    lines.push(tipLine(`${timeText(life.began)} to ${life.ended === null ? "the end" : timeText(life.ended)}`));
    return { lines, pick: () => change({ life, site: 0, band: null, block: null }) };
  },

  /** @param {number} time */
  describe(time) {
    const live = this.lives().filter((life) => life.began <= time && (life.ended ?? Infinity) > time);
    if (live.length === 0) return { text: `${timeText(time)}: none` };
    const best = live.reduce((one, other) => (other.bytes > one.bytes ? other : one));
    const text = `${timeText(time)}: ${some(live.length, "allocation")}; the biggest ${sizeText(best.bytes)}, ${siteText(best.site)}`;
    return { text, pick: () => change({ life: best, site: 0, band: null, block: null }) };
  },
};

function livesTable() {
  const holder = /** @type {HTMLDetailsElement} */ (byId("lives-table"));
  if (!holder.open) return;
  const seen = livesOf().filter((life) => life.began <= state.to && (life.ended ?? Infinity) >= state.from);
  seen.sort((one, other) => other.bytes - one.bytes);
  const rows = seen.slice(0, 100).map((life) => el("tr", { class: "pick" },
    el("td", { class: "n" }, sizeText(life.bytes)), el("td", {}, timeText(life.began)), el("td", {}, life.ended === null ? "live" : timeText(life.ended)), el("td", {}, life.kind),
    el("td", {}, el("button", { type: "button", class: "site", onclick: () => change({ life, site: 0, band: null, block: null }) }, siteText(life.site)))));
  const head = ["size", "began", "ended", "kind", "site"].map((name, index) => el("th", { class: index === 0 ? "n" : "" }, name));
  holder.querySelector("div")?.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)));
}

/** @type {TimeCanvas} */
let livesCanvas;

function startLives() {
  livesCanvas = new TimeCanvas(byId("lives-stage"), "Allocations over time, each as high as its size. Plus and minus zoom, arrows move, Shift and arrows move a cursor, Enter picks. A table follows.", livesView);
  watch("from to site life search theme clock chart", () => {
    if (state.chart !== "lives") return;
    livesCanvas.redraw();
    livesTable();
  });
  byId("lives-table").addEventListener("toggle", livesTable);
}
