// The cards at the top, and the tab with facts about the file and about this report.

/** @param {string} label @param {string} value @param {string} note */
function card(label, value, note, status = "") {
  return el("div", { class: `card ${status}` }, el("div", { class: "what" }, label), el("div", { class: "figure" }, value), el("div", { class: "more" }, note));
}

/** @param {string} text */
function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Shows the verdict on the file: the same leaks, order and words as in text reports. */
function startVerdict() {
  const { ooms, headline, gpus, leaks, leaks_total: total } = data.growing;
  const holder = byId("verdict");
  holder.classList.toggle("alarm", total + ooms.length > 0);
  /** Links a text to its call stack. @param {{ site: number, text: string }} row */
  const link = ({ site, text }) => (site ? el("button", { type: "button", class: "link", onclick: () => pickSite(site) }, text) : text);
  if (ooms.length > 0) holder.append(el("ul", { id: "verdict-ooms" }, ...ooms.map((oom) => el("li", {}, link(oom)))));
  holder.append(el("h2", {}, headline), ...gpus.map((gpu) => el("p", { class: "more" }, gpu)));
  const listed = leaks.slice(0, 10);
  /** Returns the advice after the last of the leaks in a row that it is for. @param {number} index */
  const advice = (index) => {
    const text = listed[index].advice;
    if (listed[index + 1]?.advice === text) return "";
    let first = index;
    while (first > 0 && listed[first - 1].advice === text) first -= 1;
    return el("div", { class: "more" }, first < index ? `${first + 1} to ${index + 1}: ` : "", ...prose(text));
  };
  if (total > 0) holder.append(el("ol", { id: "verdict-leaks" }, ...listed.map((leak, index) => el("li", {}, link(leak), advice(index)))));
  if (total > 10) holder.append(el("p", { class: "more" }, `${countText(total - 10)} more under Growing.`));
}

function startCards() {
  const [bytes, count] = data.never_freed;
  /** @param {"allocations" | "frees" | "released"} field */
  const sum = (field) => data.processes.reduce((all, process) => all + process[field], 0);
  const live = data.processes.reduce((all, process) => all + process.live[0], 0);
  byId("cards").append(
    card("Peak", sizeText(data.peak.bytes), `of ${data.memory}, at ${timeText(data.peak.ns)}`),
    card(sentence(data.held_phrase), sizeText(live), `${some(count, "allocation")}${live !== bytes ? `; ${sizeText(bytes - live)} not freed at exit` : ""}`),
    card("Allocations", countText(sum("allocations")), `${countText(sum("frees"))} freed${sum("released") ? `, ${countText(sum("released"))} released` : ""}`),
    card("Time", spanText(data.span[1] - data.span[0]), `${countText(data.events)} events`),
    card("Accuracy", data.exact ? "exact" : "not exact", data.warnings.length ? some(data.warnings.length, "note") : "nothing was lost", data.exact ? "good" : ""),
  );
  startVerdict();
  byId("title").textContent = data.file.slice(data.file.lastIndexOf("/") + 1) || data.file;
  byId("title").title = data.file;
  byId("subtitle").textContent = [SOURCES[data.source], data.producer].filter(Boolean).join(" by ");
  if (!data.exact) {
    for (const warning of data.warnings.filter((one) => one.inexact)) byId("alarms").append(el("p", {}, `Not exact: ${warning.text}${warning.count > 1 ? ` (${countText(warning.count)})` : ""}`));
  }
}

/** @param {string} id @param {[string, number?][]} columns @param {Child[][]} rows */
function simpleTable(id, columns, rows) {
  const head = columns.map(([name, numeric]) => el("th", { class: numeric ? "n" : "" }, name));
  const body = rows.map((row) => el("tr", {}, ...row.map((cell, index) => el("td", { class: columns[index][1] ? "n" : "" }, cell))));
  return el("div", { class: "scroll" }, el("table", { id }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
}

function startFacts() {
  const holder = byId("view-facts");
  holder.append(el("p", { class: "note" }, `${data.file}: ${[SOURCES[data.source], data.producer].filter(Boolean).join(" by ")}; ${some(data.events, "event")}.`));
  holder.append(el("h2", {}, "Processes"));
  holder.append(simpleTable("processes", [["process"], ["device"], ["peak", 1], ["at", 1], ["held", 1], ["allocations", 1], ["freed", 1], ["released", 1], ["held by kind"]],
    data.processes.map((process) => [processText(process.pid), deviceText(process.device), sizeText(process.peak_bytes), process.peak_bytes ? timeText(process.peak_ns) : "", sizeText(process.never_freed[0]),
      countText(process.allocations), countText(process.frees), countText(process.released), process.kinds.map(([kind, bytes]) => `${kind} ${sizeText(bytes)}`).join(", ")])));
  holder.append(el("h2", {}, "Devices"));
  /** @type {Map<number | null, ReportData["devices"][0]>} */
  const known = new Map(data.devices.map((device) => [device.device, device]));
  holder.append(simpleTable("devices", [["device"], ["name"], ["memory", 1], ["peak", 1], ["at", 1]], data.peaks.map((peak) => {
    const device = known.get(peak.device);
    return [deviceText(peak.device), device ? device.name : "", device && device.total_bytes ? sizeText(device.total_bytes) : "", sizeText(peak.bytes), timeText(peak.ns)];
  })));
  holder.append(el("h2", {}, "Notes"));
  const notes = data.warnings.map((one) => el("li", { class: one.inexact ? "alarm" : "" }, `${one.text}${one.count > 1 ? ` (${countText(one.count)})` : ""}`));
  holder.append(notes.length ? el("ul", { class: "plain", id: "warnings" }, ...notes) : el("p", { class: "empty" }, "None: every event of the file was used."));
  holder.append(el("h2", {}, "What this page shows"));
  const series = data.series[0];
  const every = series.rows === data.changes;
  const made = [
    every ? `The timeline has every one of ${some(data.changes, "change")}.` : `The timeline has ${countText(series.rows)} of ${some(data.changes, "change")}: the lowest, the highest and the last of equal spans of time, so its peaks are exact.`,
    `${countText(data.allocations.count)} of ${some(data.allocations.total, "allocation")} are listed individually, largest first.`,
    `Sums are of ${data.memory}. Memory of other kinds can be drawn as lines and is never added.`,
  ];
  if (data.stacks.left_out > 0) made.push(`${some(data.stacks.left_out, "call stack")} omitted.`);
  holder.append(el("ul", { class: "plain" }, ...made.map((line) => el("li", {}, line))));
}
