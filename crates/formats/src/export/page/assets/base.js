// The page's own tools: elements that hold text and never markup, and news between its parts.

/** An element. Children are elements or text; text stays text, whatever it says. */
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
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const byId = (id) => document.getElementById(id);

/** What the parts of the page share. */
const state = {
  from: 0, // the visible time, in nanoseconds since the file's beginning
  to: 1,
  by: "kind",
  picture: "timeline",
  list: "sites",
  site: 0, // the selected site, 0 for none
  band: null, // the selected band of the timeline
  life: null, // the selected allocation
  search: "",
  clock: false,
};

const listeners = [];

/** Calls `then` whenever something of `state` changed that it names. */
function watch(names, then) {
  listeners.push({ names: names.split(" "), then });
}

/** Changes `state` and tells who wants to know; everybody once. */
function change(news) {
  const changed = Object.keys(news).filter((name) => state[name] !== news[name]);
  Object.assign(state, news);
  if (changed.length === 0) return;
  for (const { names, then } of listeners) {
    if (names.some((name) => changed.includes(name))) then();
  }
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** The first index of a sorted list whose value is more than `value`. */
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

/** Says something to those who do not see the picture. */
function speak(text) {
  byId("spoken").textContent = text;
}
