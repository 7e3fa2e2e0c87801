// The state of a caching allocator at the end of the file: segments, their blocks, and the free blocks between them.

const ROW = 17;
const STATES = ["in use", "freed, still in use by a stream", "free"];
let fullWidth = false;

/** @param {Segment} segment */
function poolName(segment) {
  const [owner, number] = segment.pool;
  const privatePool = owner === 0 && number === 0 ? "" : ` of private pool ${owner}:${number}`;
  return `${deviceText(segment.device)}, ${segment.part || "all"}${privatePool}, stream ${segment.stream ?? "?"}`;
}

/** Returns the rows of the chart: a heading for each pool, then its segments. */
function segmentRows() {
  /** @type {{ name?: string, segment?: Segment }[]} */
  const rows = [];
  let last = null;
  for (const segment of segmentsOf()) {
    const name = poolName(segment);
    if (name !== last) rows.push({ name });
    last = name;
    rows.push({ segment });
  }
  return rows;
}

/** @param {Block} block */
function blockDetails(block) {
  const { segment } = block;
  const begin = BigInt(segment.address) + BigInt(block.begin);
  return [
    heading("Block"),
    facts([
      ["State", STATES[block.state]],
      ["Size", `${sizeText(block.bytes)} (${countText(block.bytes)} bytes)`],
      ["Requested", block.state === 0 ? `${sizeText(block.requested)}, ${shareText(block.bytes - block.requested, block.bytes)} is rounding` : null],
      ["Address", el("code", {}, `0x${begin.toString(16)}`)],
      ["Segment", `${sizeText(segment.bytes)} at ${segment.address}${segment.expandable ? ", can grow" : ""}`],
      ["Pool", poolName(segment)],
    ]),
    ...(block.site ? [el("h3", {}, "Call stack"), stackList(block.site)] : []),
    el("p", {}, el("button", { type: "button", class: "link", onclick: () => change({ block: null }) }, "Clear selection")),
  ];
}

class SegmentCanvas {
  /** @param {HTMLElement} holder */
  constructor(holder) {
    this.rows = segmentRows();
    this.maxSize = segmentsOf().reduce((maxSize, segment) => Math.max(maxSize, segment.bytes), 1);
    this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "Segments and their blocks. Up and down move to other segments, left and right to other blocks, Enter picks." });
    const spacer = el("div", { style: { height: `${Math.max(0, this.rows.length * ROW + 12 - 380)}px` } });
    this.box = el("div", { class: "segments" }, this.canvas, spacer);
    this.box.style.height = `${Math.min(400, this.rows.length * ROW + 16)}px`;
    holder.append(this.box);
    this.box.addEventListener("scroll", () => this.redraw());
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", hideTip);
    this.canvas.addEventListener("click", (event) => {
      const block = this.find(event);
      if (block) change({ block, life: null, band: null, site: 0 });
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.redraw()).observe(this.box);
  }

  redraw() {
    requestAnimationFrame(() => this.paint());
  }

  /** @param {Segment} segment @param {number} width */
  scale(segment, width) {
    return (width - 84) / (fullWidth ? segment.bytes : this.maxSize);
  }

  paint() {
    const [width, height] = [this.box.clientWidth, Math.min(380, this.rows.length * ROW + 8)];
    if (width === 0) return;
    this.canvas.style.height = `${height}px`;
    const context = prepare(this.canvas, width, height);
    const colors = [null, themed("pending"), themed("free")];
    const first = Math.floor(this.box.scrollTop / ROW);
    for (let row = first; row < this.rows.length && (row - first) * ROW < height + ROW; row++) {
      const y = row * ROW - this.box.scrollTop + 4;
      const { name, segment } = this.rows[row];
      [context.textBaseline, context.textAlign] = ["middle", "left"];
      if (!segment) {
        context.fillStyle = themed("dim");
        context.font = `600 ${FONT}`;
        context.fillText(name ?? "", 6, y + ROW / 2);
        context.font = FONT;
        continue;
      }
      context.fillStyle = themed("dim");
      context.textAlign = "right";
      context.fillText(axisText(segment.bytes), 66, y + ROW / 2);
      this.segment(context, segment, y, width, colors);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Segment} segment @param {number} y @param {number} width @param {(string | null)[]} colors */
  segment(context, segment, y, width, colors) {
    const scale = this.scale(segment, width);
    const [dimmed, high] = [state.block !== null, ROW - 4];
    for (const block of segment.list) {
      const x = 74 + block.begin * scale;
      const wide = Math.max(block.bytes * scale, 0.5);
      context.globalAlpha = dimmed && state.block !== block ? 0.45 : block.state === 0 && !isFound(block.site) ? 0.25 : 1;
      context.fillStyle = colors[block.state] || siteColor(block.site);
      context.fillRect(x, y, Math.max(wide - (wide > 2 ? 0.6 : 0), 0.4), high);
    }
    context.globalAlpha = 1;
    context.strokeStyle = themed("dim");
    context.lineWidth = 0.6;
    context.strokeRect(73.5, y - 0.5, Math.max(segment.bytes * scale, 1) + 1, high + 1);
  }

  /** @param {MouseEvent} event */
  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const row = this.rows[Math.floor((y - 4 + this.box.scrollTop) / ROW)];
    if (!row || !row.segment) return null;
    const at = (x - 74) / this.scale(row.segment, this.box.clientWidth);
    return row.segment.list.find((block) => at >= block.begin && at < block.begin + block.bytes) || null;
  }

  /** @param {MouseEvent} event */
  hover(event) {
    const block = this.find(event);
    if (!block) return hideTip();
    const lines = [el("div", { class: "name" }, `${sizeText(block.bytes)}, ${STATES[block.state]}`)];
    if (block.site) lines.push(tipLine(siteText(block.site)));
    lines.push(tipLine(`in a segment of ${sizeText(block.segment.bytes)}`));
    return showTip(event.clientX, event.clientY, ...lines);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const segments = segmentsOf();
    if (segments.length === 0) return;
    const now = state.block || segments[0].list[0];
    const [segment, block] = [segments.indexOf(now.segment), now.segment.list.indexOf(now)];
    /** @type {Record<string, [number, number]>} */
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Enter: [0, 0] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const next = segments[clamp(segment + move[0], 0, segments.length - 1)];
    const found = next.list[move[0] !== 0 ? 0 : clamp(block + move[1], 0, next.list.length - 1)];
    if (!found) return;
    change({ block: found, life: null, band: null, site: 0 });
    announce(`${sizeText(found.bytes)}, ${STATES[found.state]}, ${siteText(found.site)}`);
    const top = this.rows.findIndex((row) => row.segment === next) * ROW;
    if (top < this.box.scrollTop || top > this.box.scrollTop + 360) this.box.scrollTop = top - 60;
  }
}

function poolTable() {
  /** @param {number | null} bytes */
  const size = (bytes) => (bytes === null ? "" : sizeText(bytes));
  /** @param {number | null} part */
  const share = (part) => (part === null ? "" : `${(part * 100).toFixed(1)} %`);
  const columns = ["device", "pool", "stream", "reserved", "in use", "largest free", "rounding", "external", "releasable", "fragmented"];
  const head = columns.map((name, index) => el("th", { class: index > 2 ? "n" : "" }, name));
  const rows = data.segments.pools.map((pool) => {
    const cells = [deviceText(pool.device), pool.pool + (pool.pid === null ? "" : `, process ${pool.pid}`), pool.stream ?? "", size(pool.reserved_bytes), size(pool.active_bytes),
      size(pool.largest_free_bytes), share(pool.internal), share(pool.external), size(pool.releasable_bytes), size(pool.stuck_bytes)];
    return el("tr", {}, ...cells.map((cell, index) => el("td", { class: index > 2 ? "n" : "" }, cell)));
  });
  return el("div", { class: "scroll" }, el("table", { id: "pools" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)));
}

function startSegments() {
  const holder = byId("view-segments");
  const { rows, total, hidden_bytes: hidden, advice, pools } = data.segments;
  if (rows.length === 0 && pools.length === 0) {
    holder.append(el("p", { class: "empty" }, "No allocator state: only PyTorch snapshots contain it."));
    return;
  }
  if (rows.length > 0) {
    /** @param {string} color @param {string} text */
    const key = (color, text) => el("span", {}, swatch(color), text);
    const toggle = el("button", { type: "button", class: "choice", "aria-pressed": "false" }, "Every segment at full width");
    holder.append(el("div", { class: "keys" }, key("var(--accent)", "in use, by site"), key("var(--pending)", STATES[1]), key("var(--free)", "free"), toggle));
    const canvas = new SegmentCanvas(holder);
    toggle.addEventListener("click", () => {
      fullWidth = !fullWidth;
      toggle.setAttribute("aria-pressed", String(fullWidth));
      canvas.redraw();
    });
    watch("block theme search chart", () => canvas.redraw());
    const shown = rows.length < total ? `${countText(rows.length)} of ${countText(total)} segments, the biggest; the others hold ${sizeText(hidden)}.` : `${some(total, "segment")}, by pool and address.`;
    holder.append(el("p", { class: "note" }, shown));
  }
  holder.append(el("h2", {}, "Pools"), poolTable());
  for (const { what, why } of advice) holder.append(el("p", {}, el("code", {}, what), ` ${why}`));
}
