// An icicle graph: callers above callees, as wide as their memory.

const LEVEL = 19;
/** @type {[string, number, number][]} */
const MEASURES = [["at the peak", 4, 5], ["held at the end", 0, 1], ["allocated", 2, 3]];

const flame = {
  measure: 0,
  folds: false,
  root: flameRoot(),
  zoom: flameRoot(),
  /** @type {FlameNode | null} */
  picked: null,
};

/** @returns {FlameNode} */
function flameRoot() {
  return { name: "all", where: "", foreign: false, size: 0, count: 0, children: new Map(), parent: null, depth: 0, site: 0 };
}

/** Returns the tree of all sites. Frames with the same name and file are merged. */
function flameTree() {
  const [, bytesAt, countAt] = MEASURES[flame.measure];
  const root = flameRoot();
  for (const [site, sums] of data.sites.rows) {
    const [size, count] = [sums[bytesAt], sums[countAt]];
    if (size === 0) continue;
    root.size += size;
    root.count += count;
    let node = root;
    const stack = data.stack_list[site];
    const frames = stack ? [...stack.frames].reverse().map(frameOf) : [{ name: "(no call stack)", where: "", foreign: false }];
    const own = flame.folds && frames.some((frame) => !frame.foreign) ? frames.filter((frame) => !frame.foreign) : frames;
    for (const frame of own) {
      const key = `${frame.name}\n${frame.where.replace(/:\d+$/, "")}`;
      let child = node.children.get(key);
      if (!child) {
        child = { name: frame.name, where: frame.where, foreign: frame.foreign, size: 0, count: 0, children: new Map(), parent: node, depth: node.depth + 1, site };
        node.children.set(key, child);
      }
      child.size += size;
      child.count += count;
      node = child;
    }
    node.site = site;
    node.ends = true;
  }
  return root;
}

class FlameCanvas {
  /** @param {HTMLElement} holder */
  constructor(holder) {
    this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "Flame graph. Down goes to the biggest callee, up to the caller, left and right to the neighbors; Enter zooms, Escape shows all." });
    this.box = el("div", { class: "flame" }, this.canvas);
    /** @type {FlameBox[]} */
    this.boxes = [];
    holder.append(this.box);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", hideTip);
    this.canvas.addEventListener("click", (event) => this.click(this.find(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.redraw()).observe(this.box);
  }

  rebuild() {
    flame.root = flame.zoom = flameTree();
    flame.picked = null;
    this.redraw();
  }

  redraw() {
    requestAnimationFrame(() => this.paint());
  }

  /** Lays out the callers of the zoomed node, then its subtree. @param {number} width */
  layOut(width) {
    /** @type {FlameBox[]} */
    const boxes = [];
    for (let node = flame.zoom.parent; node; node = node.parent) boxes.push({ node, x: 0, wide: width, above: true });
    /** @param {FlameNode} node @param {number} x @param {number} wide */
    const place = (node, x, wide) => {
      boxes.push({ node, x, wide });
      const children = [...node.children.values()].sort((one, other) => other.size - one.size);
      let at = x;
      for (const child of children) {
        const part = (child.size / Math.max(node.size, 1)) * wide;
        if (part >= 0.5) place(child, at, part);
        at += part;
      }
    };
    place(flame.zoom, 0, width);
    return boxes;
  }

  paint() {
    const width = this.box.clientWidth;
    if (width === 0) return;
    this.boxes = this.layOut(width);
    const height = Math.min(6000, (Math.max(...this.boxes.map(({ node }) => node.depth)) + 1) * LEVEL + 2);
    this.canvas.style.height = `${height}px`;
    const context = prepare(this.canvas, width, height);
    [context.textBaseline, context.textAlign] = ["middle", "left"];
    const [text, panel] = [themed("text"), themed("panel")];
    for (const { node, x, wide, above } of this.boxes) {
      const y = node.depth * LEVEL;
      const found = state.search !== "" && `${node.name}\n${node.where}`.toLowerCase().includes(state.search);
      context.globalAlpha = above ? 0.55 : state.search !== "" && !found ? 0.3 : 1;
      context.fillStyle = found ? themed("pending") : this.color(node);
      context.fillRect(x, y, Math.max(wide - 0.7, 0.4), LEVEL - 1.5);
      if (flame.picked === node) {
        [context.strokeStyle, context.lineWidth] = [text, 2];
        context.strokeRect(x + 1, y + 1, Math.max(wide - 2.7, 1), LEVEL - 3.5);
      }
      if (wide > 34) {
        context.fillStyle = node.depth === 0 ? text : isDark() ? "#10131a" : "#141a26";
        context.save();
        context.beginPath();
        context.rect(x + 3, y, wide - 7, LEVEL);
        context.clip();
        context.fillText(node.depth === 0 ? `all: ${sizeText(node.size)} ${MEASURES[flame.measure][0]}` : node.where && wide > 220 ? `${node.name}  ${node.where}` : node.name, x + 5, y + LEVEL / 2 - 0.5);
        context.restore();
      }
    }
    context.globalAlpha = 1;
    context.fillStyle = panel;
  }

  /** Returns a warm color by name for the program, gray for libraries. @param {FlameNode} node */
  color(node) {
    if (node.depth === 0) return themed("grid");
    let hash = 7;
    for (let i = 0; i < node.name.length; i++) hash = (hash * 31 + node.name.charCodeAt(i)) % 9973;
    if (node.foreign) return `hsl(218 ${14 + (hash % 8)}% ${isDark() ? 52 + (hash % 8) : 78 + (hash % 8)}%)`;
    return `hsl(${22 + (hash % 30)} ${70 + (hash % 15)}% ${isDark() ? 58 + (hash % 8) : 68 + (hash % 8)}%)`;
  }

  /** @param {MouseEvent} event */
  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const hit = this.boxes.find(({ node, x: left, wide }) => Math.floor(y / LEVEL) === node.depth && x >= left && x < left + wide);
    return hit ? hit.node : null;
  }

  /** @param {MouseEvent} event */
  hover(event) {
    const node = this.find(event);
    if (!node) return hideTip();
    const lines = [el("div", { class: "name" }, node.name)];
    if (node.where) lines.push(tipLine(node.where));
    lines.push(tipLine(`${sizeText(node.size)} ${MEASURES[flame.measure][0]}, ${shareText(node.size, flame.root.size)}, ${some(node.count, "allocation")}`));
    return showTip(event.clientX, event.clientY, ...lines);
  }

  /** @param {FlameNode | null} node */
  click(node) {
    if (!node) return;
    flame.zoom = flame.zoom === node && node.parent ? node.parent : node;
    flame.picked = node;
    if (node.ends && node.children.size === 0) pickSite(node.site);
    this.redraw();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const now = flame.picked || flame.zoom;
    const siblings = now.parent ? [...now.parent.children.values()].sort((one, other) => other.size - one.size) : [now];
    /** @param {number} by */
    const sibling = (by) => siblings[clamp(siblings.indexOf(now) + by, 0, siblings.length - 1)];
    /** @type {Record<string, () => FlameNode>} */
    const moves = {
      ArrowUp: () => now.parent || now,
      ArrowDown: () => [...now.children.values()].sort((one, other) => other.size - one.size)[0] || now,
      ArrowLeft: () => sibling(-1),
      ArrowRight: () => sibling(1),
    };
    if (event.key === "Enter") this.click(now);
    else if (event.key === "Escape") flame.zoom = flame.root;
    else if (moves[event.key]) flame.picked = moves[event.key]();
    else return;
    event.preventDefault();
    const { picked } = flame;
    if (picked) announce(`${picked.name}, ${sizeText(picked.size)}, ${shareText(picked.size, flame.root.size)}`);
    this.redraw();
  }
}

/** @type {FlameCanvas} */
let flameCanvas;

function startFlame() {
  const holder = byId("view-flame");
  const buttons = MEASURES.map(([name], index) => el("button", { type: "button", role: "radio", "aria-checked": String(index === flame.measure), onclick: () => measureFlame(index) }, name));
  const folds = el("button", { type: "button", "aria-pressed": "false" }, "Fold libraries");
  folds.addEventListener("click", () => {
    flame.folds = !flame.folds;
    folds.setAttribute("aria-pressed", String(flame.folds));
    flameCanvas.rebuild();
  });
  const all = el("button", { type: "button", onclick: () => {
    flame.zoom = flame.root;
    flameCanvas.redraw();
  } }, "Show all");
  holder.append(el("div", { class: "bar" }, el("div", { class: "group", role: "radiogroup", "aria-label": "Measure", id: "flame-measures" }, ...buttons), el("div", { class: "group" }, folds, all)));
  flameCanvas = new FlameCanvas(holder);
  if (data.sites.total > data.sites.rows.length) holder.append(el("p", { class: "note" }, `Of the ${countText(data.sites.rows.length)} sites with the highest peaks.`));
  watch("search theme list", () => flameCanvas.redraw());
  flameCanvas.rebuild();
}

/** @param {number} index */
function measureFlame(index) {
  flame.measure = index;
  [...byId("flame-measures").children].forEach((button, at) => button.setAttribute("aria-checked", String(at === index)));
  flameCanvas.rebuild();
}
