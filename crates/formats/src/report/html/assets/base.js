// Helpers of the report: elements that contain text and never markup, and the state that its parts share.

/**
 * Creates an element. Children are elements or text; text is never parsed as markup.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} props
 * @param {...Child} children
 */
function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("aria-")) node.setAttribute(name, String(value));
    else if (value === false) continue;
    else if (name === "class") node.className = value;
    else if (name === "style") Object.assign(node.style, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) {
    if (child !== null && child !== undefined) node.append(typeof child === "number" ? String(child) : child);
  }
  return node;
}

/** Returns an element of the page. @param {string} id */
function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found;
}

/** Returns names and values; empty values are omitted. @param {[string, Child][]} rows */
function facts(rows) {
  const list = el("dl");
  for (const [name, value] of rows) {
    if (value !== null && value !== undefined && value !== "") list.append(el("dt", {}, name), el("dd", {}, value));
  }
  return list;
}

/** Returns text whose parts between backticks are code. @param {string} text @returns {Child[]} */
function prose(text) {
  return text.split("`").map((part, index) => (index % 2 === 1 ? el("code", {}, part) : part));
}

/** @param {string} text */
function heading(text) {
  return el("h2", {}, text);
}

/** State that the parts of the report share. @type {State} */
const state = {
  from: 0, // the visible time range, in nanoseconds since the start of the file
  to: 1,
  by: "kind",
  chart: "timeline",
  list: "sites",
  site: 0, // the selected site, 0 for none
  band: null, // the selected band of the timeline
  life: null, // the selected allocation
  block: null, // the selected block of a segment
  search: "",
  clock: false,
  theme: "",
};

/** @type {{ names: string[], then: () => void }[]} */
const listeners = [];

/** Calls `then` whenever one of the named fields of `state` changes. @param {string} names @param {() => void} then */
function watch(names, then) {
  listeners.push({ names: names.split(" "), then });
}

/** Changes `state` and calls each affected listener once. @param {Partial<State>} changes */
function change(changes) {
  const names = /** @type {(keyof State)[]} */ (Object.keys(changes));
  /** @type {string[]} */
  const changed = names.filter((name) => state[name] !== changes[name]);
  Object.assign(state, changes);
  if (changed.length === 0) return;
  for (const { names, then } of listeners) {
    if (names.some((name) => changed.includes(name))) then();
  }
}

/** @param {number} value @param {number} low @param {number} high */
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** Returns the first index of a sorted list whose value is greater than `value`. @param {ArrayLike<number>} list @param {number} value */
function after(list, value) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Announces a text to screen readers. @param {string} text */
function announce(text) {
  byId("spoken").textContent = text;
}
