// Controls: tabs, theme, clock, zoom and search.

/** Creates a row of tabs with arrow-key support. `field` of the state names the visible one. @param {HTMLElement} holder @param {"chart" | "list"} field @param {[string, string][]} names */
function tabs(holder, field, names) {
  const buttons = names.map(([name, text]) => el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}`, onclick: () => change({ [field]: name }) }, text));
  holder.append(...buttons);
  holder.addEventListener("keydown", (event) => {
    const by = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (by === 0) return;
    event.preventDefault();
    const next = (names.findIndex(([name]) => name === state[field]) + by + names.length) % names.length;
    change({ [field]: names[next][0] });
    buttons[next].focus();
  });
  const show = () => names.forEach(([name], index) => {
    const isShown = state[field] === name;
    buttons[index].setAttribute("aria-selected", String(isShown));
    buttons[index].tabIndex = isShown ? 0 : -1;
    byId(`view-${name}`).hidden = !isShown;
  });
  listeners.unshift({ names: [field], then: show });
  show();
}

function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const select = /** @type {HTMLSelectElement} */ (byId("theme"));
  const apply = () => {
    const dark = select.value === "dark" || (select.value === "auto" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    change({ theme: dark ? "dark" : "light" });
  };
  select.addEventListener("change", apply);
  system.addEventListener("change", apply);
  apply();
}

function startClock() {
  if (data.wall_ms === null) return;
  const button = byId("clock");
  button.hidden = false;
  button.addEventListener("click", () => {
    change({ clock: !state.clock });
    button.setAttribute("aria-pressed", String(state.clock));
  });
}

function startZoom() {
  const around = () => {
    const span = (wholeTime()[1] - wholeTime()[0]) / 20;
    zoomTo(data.peak.ns - span / 2, data.peak.ns + span / 2);
  };
  /** @param {string} text @param {string} label @param {() => void} onclick */
  const button = (text, label, onclick) => el("button", { type: "button", title: label, "aria-label": label, onclick }, text);
  byId("zoom-group").append(
    button("\u2190", "Earlier", () => panBy(-0.4)), button("\u2192", "Later", () => panBy(0.4)),
    button("+", "Zoom in", () => zoomBy(0.5)), button("\u2212", "Zoom out", () => zoomBy(2)),
    button("Peak", "Zoom to the peak", around), button("All", "Show all", () => zoomTo(...wholeTime())),
  );
  const hint = () => {
    const time = state.chart !== "segments";
    byId("zoom-group").hidden = !time;
    byId("by-group").hidden = state.chart !== "timeline";
    byId("hint").textContent = time ? "Wheel or + and \u2212 zoom, drag selects, Shift and drag or arrows move, 0 or double click shows all. Click for details." : "Hover for sizes, click for details.";
  };
  watch("chart", hint);
  hint();
}

function startSearch() {
  let waiting = 0;
  const input = /** @type {HTMLInputElement} */ (byId("search"));
  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => change({ search: input.value.trim().toLowerCase() }), 120);
  });
}
