// The details panel: host, GPU, process, site and call stack; leaks with evidence; incidents. The address of the page names
// what is shown, so that the back button and links work.

/** Time between two requests of what the panel shows. */
const REFRESH_MS = 5000;

/** What the panel shows, from the address. @returns {Record<string, string>} */
function target() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** @param {Record<string, string | number>} fields */
function openDetails(fields) {
  const text = Object.entries(fields).map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  location.hash = text;
}

/** @param {string} text @param {Record<string, string | number>} fields */
function openLink(text, fields) {
  return el("button", { type: "button", class: "link", onclick: () => openDetails(fields) }, text);
}

/** @param {[string, Record<string, string | number>][]} steps */
function crumbs(...steps) {
  const nodes = steps.flatMap(([text, fields], index) => [index > 0 ? "›" : null, index === steps.length - 1 ? el("span", {}, text) : openLink(text, fields)]);
  return el("nav", { class: "crumbs", "aria-label": "Path" }, ...nodes);
}

/** Whether frames of libraries are unfolded: the panel is drawn again while they are. */
let unfoldsLibraries = false;

/** @param {FrameItem} frame */
function stackItem({ text, folded }) {
  if (folded.length === 0) return el("li", { class: "own" }, text);
  const details = el("details", { open: unfoldsLibraries, ontoggle: () => { unfoldsLibraries = details.hasAttribute("open"); } },
    el("summary", {}, text), el("ol", { class: "stack" }, ...folded.map((line) => el("li", { class: "foreign" }, line))));
  return el("li", { class: "foreign" }, details);
}

/** @param {FrameItem[]} frames */
function stackItems(frames) {
  if (frames.length === 0) return el("p", { class: "empty" }, "No call stack.");
  return el("ol", { class: "stack" }, ...frames.map(stackItem));
}

/** @param {string[]} lines */
function bullets(lines) {
  return el("ul", {}, ...lines.map((line) => el("li", {}, line)));
}

/** @param {ViewAnswer<CellRow>} sites @param {Record<string, string | number>} from */
function siteTable(sites, from) {
  const holder = el("div");
  const table = new CellTable(holder, { id: "sites-of", caption: "Sites", link: 6, minor: ["PEAK", "ALLOCATED"], empty: "No sites.", pick: (row) => openDetails({ ...from, site: row.key }) });
  table.fill(sites.columns, sites.rows);
  return holder;
}

/** @param {string} gpu */
async function gpuDetails(gpu) {
  const answer = /** @type {ViewAnswer<ProcessRow>} */ (await requestJson("/api/v1/view/processes"));
  const item = live.gpus.all.find((one) => one.key === gpu);
  const rows = answer.rows.filter((row) => row.gpus.includes(Number(gpu)));
  const holder = el("div");
  new CellTable(holder, { id: "processes-of", caption: "Processes on this GPU", link: 2, minor: ["USER"], empty: "No process uses it.", pick: (row) => openDetails({ gpu, pid: row.cells[0] }) }).fill(answer.columns, rows);
  return [
    crumbs([live.facts.host, {}], [item?.name ?? `GPU ${gpu}`, {}]),
    facts([["Used", item?.used], ["Of that", item?.parts], ["Growth", item?.growth], ["Full", item?.full ? el("span", { class: "full" }, item.full) : null]]),
    el("h3", {}, `Processes (${countText(rows.length)})`),
    holder,
  ];
}

/** @param {string} pid @param {string | undefined} gpu */
async function processDetails(pid, gpu) {
  const [{ process }, sites, leaks] = await Promise.all([requestJson(`/api/v1/processes/${pid}`), requestJson(`/api/v1/view/sites?pid=${pid}&limit=50`), requestJson(`/api/v1/view/leaks?pid=${pid}`)]);
  /** @type {Record<string, string>} */
  const from = gpu ? { gpu, pid } : { pid };
  const kinds = Object.entries(process.live_bytes_by_kind).map(([kind, bytes]) => `${sizeText(Number(bytes))} ${kind}`);
  const { container } = process;
  const pools = (process.allocators ?? []).flatMap((/** @type {any} */ one) => one.pools.map((/** @type {any} */ pool) => [one.allocator, pool]));
  const caches = pools.map((/** @type {any} */ [name, pool]) => `${name} on ${pool.device === undefined ? "an unknown device" : `gpu_${pool.device}`}: ${sizeText(pool.allocated_bytes)} in ${some(pool.live_blocks, "block")}, ${sizeText(pool.cached_bytes)} cached`);
  const largest = process.threads.flatMap((/** @type {any} */ thread) => thread.allocations).sort((/** @type {any} */ one, /** @type {any} */ other) => other.bytes - one.bytes).slice(0, 5);
  return [
    processCrumbs(`${pid} ${process.program}`, gpu),
    ...leaks.rows.flatMap((/** @type {LeakRow} */ leak) => [el("p", {}, openLink(leak.sentence, { ...from, leak: leak.key })), el("p", { class: "advice" }, ...prose(leak.advice))]),
    facts([
      ["User", process.user], ["Name", process.name === process.program ? null : process.name],
      ["Container", container ? container.pod?.name ?? container.name ?? container.id?.slice(0, 12) : null],
      ["Used", process.used_reported ? `${sizeText(process.used_bytes)}, as the driver reports it` : null],
      ["Live", `${sizeText(process.live_bytes)} in ${some(process.live_allocations, "allocation")}`],
      ["By kind", kinds.join(", ")], ["Allocators", caches.join("; ")], ["Untracked", process.untracked_bytes === undefined ? null : sizeText(process.untracked_bytes)],
      ["Peak", sizeText(process.peak_bytes)], ["Allocated", `${some(process.allocations_total, "allocation")}, ${countText(process.frees_total)} freed`],
      ["Failed", process.failed_allocations ? countText(process.failed_allocations) : null],
      ["Accuracy", process.exact ? "exact" : "not exact"],
    ]),
    el("h3", {}, `Sites (${countText(sites.total)})`),
    siteTable(sites, from),
    ...(largest.length > 0 ? [el("h3", {}, "Largest allocations"), el("ul", { class: "plain" }, ...largest.map((/** @type {any} */ one) => el("li", {}, `${sizeText(one.bytes)} ${one.kind} `, el("code", {}, one.address))))] : []),
  ];
}

/** @param {string} text @param {string | undefined} gpu */
function processCrumbs(text, gpu) {
  const host = /** @type {[string, Record<string, string>]} */ ([live.facts.host, {}]);
  if (!gpu) return crumbs(host, [text, {}]);
  return crumbs(host, [live.gpus.all.find((one) => one.key === gpu)?.name ?? `GPU ${gpu}`, { gpu }], [text, {}]);
}

/** @param {Record<string, string>} at */
async function siteDetails({ site, pid, gpu }) {
  const { columns, site: found } = await requestJson(`/api/v1/view/sites/${encodeURIComponent(site)}`);
  const holders = found.processes.map((/** @type {{ pid: number, live: string }} */ one) => el("li", {}, openLink(String(one.pid), { pid: one.pid }), `: ${one.live}`));
  /** @type {[string, Record<string, string>][]} */
  const path = [[live.facts.host, {}]];
  if (gpu) path.push([live.gpus.all.find((one) => one.key === gpu)?.name ?? `GPU ${gpu}`, { gpu }]);
  if (pid) path.push([pid, gpu ? { gpu, pid } : { pid }]);
  return [
    crumbs(...path, [found.location, {}]),
    el("p", { class: "name" }, found.location),
    facts(columns.slice(0, -1).map((/** @type {PageColumn} */ column, /** @type {number} */ index) => [column.title.charAt(0) + column.title.slice(1).toLowerCase(), found.cells[index]])),
    ...(found.summary ? [el("p", {}, found.summary)] : []),
    ...(found.evidence.length > 0 ? [el("h3", {}, "Evidence"), bullets(found.evidence)] : []),
    el("h3", {}, "Call stack, innermost first"),
    stackItems(found.stack),
    ...(holders.length > 0 ? [el("h3", {}, "Processes"), el("ul", { class: "plain" }, ...holders)] : []),
  ];
}

/** @param {string} key */
async function leakDetails(key) {
  const answer = /** @type {ViewAnswer<LeakDetailsRow>} */ (await requestJson("/api/v1/view/leaks"));
  const leak = answer.rows.find((row) => row.key === key);
  if (!leak) return [crumbs([live.facts.host, {}], ["leak", {}]), el("p", { class: "empty" }, "This leak is no longer reported: its processes ended, or its memory was freed.")];
  const [, program, place] = leak.cells;
  return [
    crumbs([live.facts.host, {}], [place, {}]),
    el("p", { class: "name" }, `${place} in ${program}`),
    facts([
      ["Holds", leak.holds], ["Grows", leak.grows], ["Confidence", leak.cells[6]], ["User", leak.user], ["GPU", leak.gpu],
      ["Processes", el("span", {}, ...leak.pids.slice(0, 20).flatMap((pid) => [openLink(String(pid), { pid }), " "]))],
    ]),
    el("h3", {}, "Try"), el("p", { class: "advice" }, ...prose(leak.advice)),
    ...leak.sites.flatMap((site) => [
      el("h3", {}, `Evidence of ${site.location}`),
      bullets([`holds ${site.holds}`, ...site.evidence]),
      el("h3", {}, "Call stack, innermost first"), stackItems(site.stack),
    ]),
  ];
}

/** @param {string} id */
async function incidentDetails(id) {
  const path = `/api/v1/incidents/${encodeURIComponent(id)}`;
  const { incident, files } = await requestJson(path);
  /** @param {{ name: string, bytes: number }} file */
  const link = (file) => {
    const address = `${path}/${encodeURIComponent(file.name)}`;
    const isPage = file.name.endsWith(".html") || file.name.endsWith(".txt");
    // A link sends no header: with a token, the script fetches the file.
    const onclick = sessionStorage.getItem(TOKEN_NAME) ? (/** @type {Event} */ event) => { event.preventDefault(); save(address, file.name); } : undefined;
    return el("li", {}, el("a", { href: address, target: isPage ? "_blank" : undefined, rel: "noopener", onclick }, file.name), ` ${sizeText(file.bytes)}`);
  };
  const list = live.facts.incident_files ? el("ul", { class: "plain", id: "incident-files" }, ...files.map(link))
    : el("p", { class: "note" }, `${some(files.length, "file")} in the incident directory of the host. They contain paths, so the agent serves them only with show_paths = true.`);
  return [
    crumbs([live.facts.host, {}], [id, {}]),
    el("p", { class: "name" }, incident.summary),
    facts([
      ["Time", incident.time], ["Trigger", incident.trigger.replaceAll("_", " ")], ["Cause", incident.cause.replaceAll("_", " ")],
      ["Process", incident.pid === null ? null : openLink(`${incident.pid} ${incident.process}`, { pid: incident.pid })],
      ["Requested", incident.requested_bytes === null ? null : sizeText(incident.requested_bytes)], ["GPU", incident.gpu],
    ]),
    ...(incident.summary_text ? [el("pre", { class: "summary" }, incident.summary_text)] : []),
    el("h3", {}, "Files"), list,
  ];
}

/** Downloads a file with the token. @param {string} address @param {string} name */
async function save(address, name) {
  const url = URL.createObjectURL(await (await request(address)).blob());
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

function overviewDetails() {
  const { totals } = live;
  return [
    heading(live.facts.host),
    facts([
      ["Processes", countText(totals.processes)], ["Sites", countText(totals.sites)], ["Leaks", countText(totals.leaks)], ["Incidents", countText(totals.incidents)],
      ["Agent", `${live.facts.version}; ${totals.cpu_percent} % of a core, ${sizeText(totals.memory_bytes)}`],
      ["Degraded", totals.degraded.join(", ")],
    ]),
    el("p", { class: "note" }, "Select a GPU, process, band, leak, site or incident to see what it holds, its evidence and its call stack."),
  ];
}

/** @param {Record<string, string>} at @returns {Promise<HTMLElement[]>} */
async function detailsOf(at) {
  if (at.incident) return incidentDetails(at.incident);
  if (at.leak) return leakDetails(at.leak);
  if (at.site) return siteDetails(at);
  if (at.pid) return processDetails(String(Number(at.pid)), at.gpu);
  if (at.gpu) return gpuDetails(at.gpu);
  return overviewDetails();
}

/** What the panel shows now, to leave it alone if nothing changed. */
let shownDetails = "";
let detailsNumber = 0;

/** Requests and shows the details. @param {boolean} isNew whether the user selected something */
async function showDetails(isNew) {
  const number = ++detailsNumber;
  const panel = byId("details");
  let content;
  try {
    content = await detailsOf(target());
  } catch (error) {
    if (error instanceof RequestError && error.status === 401) return showLogin();
    if (!isNew && !(error instanceof RequestError)) return;
    content = [crumbs([live.facts.host, {}], ["not found", {}]), el("p", { class: "empty" }, `${error instanceof Error ? error.message : error}`)];
  }
  if (number !== detailsNumber) return;
  const text = content.map((node) => node.textContent).join("\n");
  if (!isNew && text === shownDetails) return;
  shownDetails = text;
  const controls = [...panel.querySelectorAll("button, a")];
  const focused = controls.indexOf(/** @type {Element} */ (document.activeElement));
  panel.replaceChildren(...content);
  if (focused >= 0) /** @type {HTMLElement | undefined} */ ([...panel.querySelectorAll("button, a")][focused])?.focus();
  if (!isNew) return;
  panel.scrollTop = 0;
  // In a narrow window the panel is below the lists.
  if (location.hash.length > 1 && panel.getBoundingClientRect().top > window.innerHeight * 0.6) panel.scrollIntoView({ block: "start" });
}

function startDetails() {
  window.addEventListener("hashchange", () => {
    showDetails(true);
    showLists();
  });
  setInterval(() => {
    if (!document.hidden && !live.paused && !byId("live").hidden) showDetails(false);
  }, REFRESH_MS);
  watch("band", () => {
    if (!state.band) return;
    const band = seriesOf(state.band.by).bands[state.band.index];
    if (band?.target) location.hash = band.target;
  });
}
