// The verdict, the GPUs and the lists.

/** The state that events update. @type {LiveState} */
const live = {
  facts: { host: "", version: "", incident_files: false },
  summary: { time: "", observed: "", verdict: "", alarm: false, notes: [] },
  totals: { processes: 0, leaks: 0, incidents: 0, sites: 0, cpu_percent: 0, memory_bytes: 0, degraded: [] },
  columns: { processes: [], leaks: [] },
  gpus: new KeyedList(), processes: new KeyedList(), leaks: new KeyedList(), incidents: new KeyedList(),
  all: null, sites: null, paused: false,
};

/** Maximum number of leaks in the verdict. */
const TOP_LEAKS = 3;

/** @type {PageColumn[]} */
const INCIDENT_COLUMNS = [{ title: "TIME", right: false }, { title: "PROCESS", right: false }, { title: "CAUSE", right: false }, { title: "SUMMARY", right: false }];

/** @param {string} text */
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Replaces the content of an element if its text changed, so that selections and focus stay. @param {HTMLElement} holder @param {Node[]} content */
function replaceIfChanged(holder, content) {
  const next = el("div", {}, ...content);
  if (holder.textContent !== next.textContent) holder.replaceChildren(...content);
}

function showSummary() {
  const { summary, facts } = live;
  document.title = `${facts.host} - vramscope`;
  byId("title").textContent = facts.host;
  byId("subtitle").textContent = `${summary.time}, observed for ${summary.observed}`;
  const box = byId("verdict");
  box.classList.toggle("alarm", summary.alarm);
  const leaks = live.leaks.all.slice(0, TOP_LEAKS);
  // Leaks with the same cause follow each other: one of them has the advice.
  const item = (/** @type {LeakRow} */ leak, /** @type {number} */ index) => el("li", {}, openLink(leak.sentence, { leak: leak.key }),
    leak.advice === leaks[index + 1]?.advice ? null : el("div", { class: "more" }, ...prose(leak.advice)));
  const more = live.totals.leaks - leaks.length;
  replaceIfChanged(box, [
    el("h2", {}, sentence(summary.verdict)),
    ...(leaks.length > 0 ? [el("ol", { id: "verdict-leaks" }, ...leaks.map(item))] : []),
    ...(more > 0 ? [el("p", { class: "more" }, `${some(more, "more leak")} under Leaks.`)] : []),
  ]);
  replaceIfChanged(byId("alarms"), summary.notes.filter((note) => note.inexact).map((note) => el("p", {}, note.text)));
}

/** Cards of GPUs, by key. @type {Map<string, { node: HTMLElement, text: string }>} */
const gpuCards = new Map();

function showGpus() {
  const holder = byId("cards");
  const chosen = target().gpu;
  const cards = live.gpus.all.map((gpu) => {
    const text = JSON.stringify(gpu);
    const known = gpuCards.get(gpu.key);
    if (known && known.text === text) return known.node;
    const node = known?.node ?? el("button", { type: "button", class: "card", onclick: () => openDetails({ gpu: gpu.key }) });
    const bar = (/** @type {number} */ share) => el("span", { style: { width: `${share / 10}%` } });
    const growth = [gpu.full ? el("span", { class: "full" }, gpu.full) : null, gpu.full && gpu.growth ? "; " : null, gpu.growth].filter((part) => part !== null);
    node.replaceChildren(
      el("div", { class: "what" }, gpu.name), el("div", { class: "figure" }, gpu.used),
      ...(gpu.share ? [el("div", { class: "meter", "aria-hidden": "true" }, ...gpu.share.map(bar))] : []),
      el("div", { class: "more" }, gpu.parts), el("div", { class: "more" }, ...growth),
    );
    gpuCards.set(gpu.key, { node, text });
    return node;
  });
  cards.forEach((card, index) => {
    card.setAttribute("aria-pressed", String(live.gpus.order[index] === chosen));
    if (holder.children[index] !== card) holder.insertBefore(card, holder.children[index] ?? null);
  });
  while (holder.children.length > cards.length) holder.lastElementChild?.remove();
}

/** @type {Record<string, CellTable>} */
const tables = {};

/** @param {CellRow} row */
const isFoundRow = (row) => state.search === "" || row.cells.join("\n").toLowerCase().includes(state.search);

/** @param {IncidentEntry} incident @returns {CellRow} */
const incidentRow = (incident) => ({
  key: incident.id, state: "",
  cells: [incident.time.slice(0, 19).replace("T", " "), `${incident.pid ?? ""} ${incident.process}`.trim(), incident.cause.replaceAll("_", " "), incident.summary],
});

function showLists() {
  const { totals } = live;
  const processes = live.all ?? live.processes.all;
  tables.processes.fill(live.columns.processes, processes.filter(isFoundRow));
  byId("more-processes").hidden = live.all !== null || totals.processes <= live.processes.order.length;
  byId("more-processes").textContent = `Show all ${countText(totals.processes)} processes`;
  tables.leaks.fill(live.columns.leaks, live.leaks.all.filter(isFoundRow));
  if (live.sites) tables.sites.fill(live.sites.columns, live.sites.rows.filter(isFoundRow));
  byId("sites-note").textContent = live.sites && live.sites.total > live.sites.rows.length ? `The ${countText(live.sites.rows.length)} largest of ${countText(live.sites.total)} sites.` : "";
  tables.incidents.fill(INCIDENT_COLUMNS, live.incidents.all.map(incidentRow).filter(isFoundRow));
  const counts = /** @type {const} */ ([["processes", "Processes"], ["leaks", "Leaks"], ["sites", "Sites"], ["incidents", "Incidents"]]);
  for (const [name, text] of counts) byId(`tab-${name}`).textContent = `${text} (${countText(totals[name])})`;
}

/** Requests lists that events do not contain, while they are visible. */
async function refreshLists() {
  try {
    if (state.list === "sites") live.sites = await requestJson("/api/v1/view/sites?limit=100");
    const isLong = live.totals.processes > live.processes.order.length;
    if (state.list === "processes" && isLong && (live.all || state.search !== "")) live.all = (await requestJson("/api/v1/view/processes")).rows;
    showLists();
  } catch (error) {
    // The stream reports that the agent cannot be reached.
    if (error instanceof RequestError && error.status === 401) showLogin();
  }
}

function startLists() {
  /** @param {string} id @param {string} caption @param {number} link @param {string} empty @param {string[]} minor @param {(row: CellRow) => void} pick @param {(row: CellRow) => boolean} isPicked */
  const table = (id, caption, link, empty, minor, pick, isPicked) => {
    tables[id] = new CellTable(byId(`view-${id}`), { id, caption, link, minor, empty, pick, isPicked });
  };
  table("processes", "Processes", 2, "No process.", ["USER"], (row) => openDetails({ pid: row.cells[0] }), (row) => row.cells[0] === target().pid);
  table("leaks", "Leaks", 2, "No leak.", [""], (row) => openDetails({ leak: row.key }), (row) => row.key === target().leak);
  table("sites", "Sites", 6, "No site.", ["PEAK", "ALLOCATED"], (row) => openDetails({ site: row.key }), (row) => row.key === target().site);
  table("incidents", "Incidents", 3, "No incident.", ["CAUSE"], (row) => openDetails({ incident: row.key }), (row) => row.key === target().incident);
  const more = el("button", { type: "button", class: "more-rows", id: "more-processes", hidden: true, onclick: () => { live.all = live.processes.all; refreshLists(); } });
  byId("view-processes").append(more);
  byId("view-sites").append(el("p", { class: "note", id: "sites-note" }));
  tabs(byId("list-tabs"), "list", [["processes", "Processes"], ["leaks", "Leaks"], ["sites", "Sites"], ["incidents", "Incidents"]]);
  watch("list search", refreshLists);
  setInterval(() => {
    if (!document.hidden && !live.paused && !byId("live").hidden) refreshLists();
  }, REFRESH_MS);
}
