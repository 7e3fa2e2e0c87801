// Memory that is held at the end, and sites that grow.

/** @type {[keyof ReportData["leaks"], string | null][]} */
const LEAKS = [["counted", null], ["managed", "Managed memory"], ["host", "Pinned and registered host memory"]];

/** @param {number} whole @param {boolean} isHost @returns {Column<Leak>[]} */
function leakColumns(whole, isHost) {
  /** @param {Leak} row */
  const where = (row) => (isHost && row.device === null ? "host" : deviceText(row.device));
  return [
    { name: "bytes", numeric: true, first: true, value: (row) => row.bytes, show: (row) => sizeCell(row.bytes, whole) },
    { name: "count", numeric: true, value: (row) => row.count, show: (row) => countText(row.count) },
    { name: "of", title: "Total allocations at this site", numeric: true, value: (row) => row.began, show: (row) => countText(row.began) },
    { name: "kind", value: (row) => row.kind, show: (row) => row.kind },
    { name: "device", value: where, show: where },
    { name: "process", value: (row) => row.pid, show: (row) => processText(row.pid) },
    { name: "site", value: (row) => siteText(row.site), show: (row) => siteCell(row.site) },
  ];
}

function startLeaks() {
  const holder = byId("view-leaks");
  const [bytes, count] = data.never_freed;
  const [fixed] = data.statics;
  const summary = count === 0 ? `All ${data.memory} was freed.` : `${sizeText(bytes)} of ${data.memory} ${data.held_phrase} or when its process exited (${some(count, "allocation")}).`;
  const statics = fixed > 0 ? ` ${sizeText(fixed)} of it is static variables (freed with their module).` : "";
  holder.append(el("p", {}, summary + statics));
  /** @type {[Table<Leak>, Leak[]][]} */
  const tables = [];
  for (const [name, title] of LEAKS) {
    const { rows, total, sum } = data.leaks[name];
    if (rows.length === 0) continue;
    if (title) holder.append(el("h2", {}, `${title}: ${sizeText(sum[0])} in ${some(sum[1], "allocation")}`));
    const table = new Table(holder, leakColumns(sum[0], name === "host"), { id: `leaks-${name}`, caption: title || "Held", pick: (row) => pickSite(row.site), isPicked: (row) => state.site !== 0 && row.site === state.site, empty: "No site matches the search." });
    tables.push([table, rows]);
    if (total > rows.length) holder.append(el("p", { class: "note" }, `The ${countText(rows.length)} biggest of ${countText(total)} rows.`));
  }
  const fill = () => tables.forEach(([table, rows]) => table.fill(rows.filter((row) => isFound(row.site))));
  watch("search", fill);
  watch("site", () => tables.forEach(([table]) => table.mark()));
  fill();
}

/** @type {Record<string, string>} */
const VERDICTS = { leak: "leak", plateau: "plateau", cache: "cache", ramp_up: "ramp-up", burst: "burst", periodic: "periodic", not_enough_data: "not enough data" };

function startGrowing() {
  const holder = byId("view-growing");
  const { headline, suspects, others, anomalies } = data.growing;
  /** @param {Verdict} row @param {number} number */
  const amount = (row, number) => (row.is_bytes ? sizeText(number) : countText(number));
  /** @type {Column<Verdict>[]} */
  const siteColumns = [
    { name: "live", numeric: true, value: (row) => row.live[0], show: (row) => amount(row, row.live[0]) },
    { name: "count", numeric: true, value: (row) => row.live[1], show: (row) => countText(row.live[1]) },
    { name: "grew in", numeric: true, value: (row) => row.steps[0], show: (row) => `${row.steps[0]} of ${row.steps[1]} windows` },
    { name: "freed", numeric: true, value: (row) => row.freed / Math.max(row.began, 1), show: (row) => shareText(row.freed, row.began) },
    { name: "kind", value: (row) => row.kind, show: (row) => row.kind },
    { name: "process", value: (row) => row.pid, show: (row) => processText(row.pid) },
    { name: "site", value: (row) => siteText(row.site), show: (row) => siteCell(row.site) },
  ];
  /** @type {[Table<any>, (Verdict | Anomaly)[]][]} */
  const tables = [];
  /** @template {Verdict | Anomaly} Row @param {Row[]} rows @param {string} id @param {string} caption @param {Column<Row>[]} columns */
  const list = (rows, id, caption, columns) => {
    if (rows.length === 0) return;
    const table = new Table(holder, columns, { id, caption, pick: (row) => pickSite(row.site), isPicked: (row) => state.site !== 0 && row.site === state.site });
    tables.push([table, rows]);
  };
  if (suspects.length === 0) {
    holder.append(el("p", { class: "empty" }, headline));
  } else {
    holder.append(el("p", { class: "note" }, "Sites that keep growing and whose old allocations are still live. Not proof: a cache that is still filling looks the same."));
  }
  list(suspects, "growing", "Sites that leak", [
    { name: "grows by", numeric: true, first: true, value: (row) => row.per_hour, show: (row) => `${amount(row, row.per_hour)}/h` },
    { name: "confidence", value: (row) => row.confidence, show: (row) => row.confidence },
    ...siteColumns,
  ]);
  list(others, "other-verdicts", "Other sites", [
    { name: "verdict", value: (row) => row.verdict, show: (row) => VERDICTS[row.verdict] || row.verdict },
    ...siteColumns.map((column, index) => (index === 0 ? { ...column, first: true } : column)),
  ]);
  list(anomalies, "anomalies", "Anomalies", [
    { name: "bytes", numeric: true, first: true, value: (row) => row.bytes, show: (row) => sizeText(row.bytes) },
    { name: "baseline", numeric: true, value: (row) => row.baseline, show: (row) => sizeText(row.baseline) },
    { name: "type", value: (row) => row.type, show: (row) => row.type },
    { name: "time", value: (row) => row.time, show: (row) => row.time },
    { name: "process", value: (row) => row.pid, show: (row) => processText(row.pid) },
    { name: "site", value: (row) => siteText(row.site), show: (row) => siteCell(row.site) },
  ]);
  const fill = () => tables.forEach(([table, rows]) => table.fill(rows.filter((row) => isFound(row.site))));
  watch("search", fill);
  watch("site", () => tables.forEach(([table]) => table.mark()));
  fill();
}
