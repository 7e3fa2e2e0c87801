// The stream of events: read with `fetch`, which can send the token as a header, and opened again when it ends.

/** Time without data after which the connection counts as broken; the agent sends something every 10 seconds. */
const SILENCE_MS = 30_000;

/** Ends the current connection. @type {AbortController | null} */
let connection = null;

/** @param {string} text @param {boolean} isOn */
function showConnection(text, isOn) {
  const node = byId("connection");
  if (node.textContent !== text) node.textContent = text;
  node.classList.toggle("on", isOn);
}

/** Calls `then` with each event of a response. @param {Response} response @param {AbortController} control @param {(name: string, data: string) => void} then */
async function readEvents(response, control, then) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let text = "";
  for (;;) {
    const timer = setTimeout(() => control.abort(), SILENCE_MS);
    const { value, done } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop() ?? "";
    for (const event of events) {
      /** @type {Record<string, string>} */
      const fields = {};
      for (const line of event.split("\n")) {
        const at = line.indexOf(": ");
        if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
      }
      if (fields.data) then(fields.event, fields.data);
    }
  }
}

/** Keeps the stream open while the page is visible and not paused. */
async function follow() {
  connection?.abort();
  const control = new AbortController();
  connection = control;
  let wait = 1000;
  while (!control.signal.aborted && !document.hidden && !live.paused) {
    // A broken connection ends its own attempt only.
    const attempt = new AbortController();
    control.signal.addEventListener("abort", () => attempt.abort());
    try {
      const response = await request("/api/v1/stream", attempt.signal);
      wait = 1000;
      await readEvents(response, attempt, apply);
    } catch (error) {
      if (control.signal.aborted) return;
      if (error instanceof RequestError && error.status === 401) return showLogin();
      showConnection(error instanceof RequestError ? error.message : "connection lost, retrying", false);
    }
    if (control.signal.aborted) return;
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, 30_000);
  }
}

/** @param {string} name @param {string} text */
function apply(name, text) {
  const event = JSON.parse(text);
  const [first, last] = data.span;
  const isFirst = byId("live").hidden !== false;
  if (name === "whole") {
    Object.assign(live, { facts: event.facts, columns: event.columns });
    loadHistory(event);
  } else addRow(event);
  if (event.phases) setPhases(event.phases);
  for (const list of /** @type {const} */ (["gpus", "processes", "leaks", "incidents"])) notice(list, event[list], isFirst);
  if (event.summary) live.summary = event.summary;
  if (event.totals) live.totals = event.totals;
  if (isFirst) openPage();
  const span = state.to - state.from;
  if (isFirst || name === "whole" || (state.from <= first && state.to >= last)) change({ from: wholeTime()[0], to: wholeTime()[1] });
  else if (state.to >= last) change({ from: data.span[1] - span, to: data.span[1] });
  show();
  showConnection("live", true);
}

/** Updates a list, and announces new leaks and incidents. @param {"gpus" | "processes" | "leaks" | "incidents"} name @param {any} change @param {boolean} isFirst */
function notice(name, change, isFirst) {
  const list = live[name];
  const known = new Set(list.order);
  list.update(change);
  if (isFirst || (name !== "leaks" && name !== "incidents")) return;
  for (const key of list.order.filter((key) => !known.has(key))) {
    const entry = /** @type {any} */ (list.entries.get(key));
    announce(name === "leaks" ? entry?.sentence : `incident: ${entry?.summary}`);
  }
}

function openPage() {
  byId("live").hidden = false;
  byId("login").hidden = true;
  byId("logout").hidden = !sessionStorage.getItem(TOKEN_NAME);
  requestAnimationFrame(() => { document.documentElement.dataset.ready = "true"; });
  showDetails(true);
  refreshLists();
}

/** Names of the bands in the legend. */
let legendNames = "";

/** Shows the state. */
function show() {
  showSummary();
  showGpus();
  showLists();
  if (location.hash.length <= 1) showDetails(false);
  timelineCanvas.redraw();
  timelineCanvas.canvas.setAttribute("aria-label", timelineLabel());
  const series = seriesOf(state.by);
  const names = [state.by, state.theme, ...series.bands.map((_, index) => bandName(series, index))].join("\n");
  if (names !== legendNames) drawLegend();
  legendNames = names;
  const sizes = byId("legend").querySelectorAll(".size");
  series.bands.forEach((_, index) => { if (sizes[index]) sizes[index].textContent = sizeText(legendSize(series, index)); });
}
