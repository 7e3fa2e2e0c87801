// The data of the live page: the last hour in bands, in the form that the widgets of the report read.

/** What the widgets of the report read; most of it is empty here. */
const data = /** @type {ReportData} */ (/** @type {unknown} */ ({
  wall_ms: 0, span: [0, 1000], phases: [], peak: { bytes: 0, ns: 0 }, overlays: [], lines: [], processes: [], stack_list: [null], sites: { rows: [] },
  series: ["process", "gpu", "kind", "site"].map((by) => ({ by })),
}));

/** Age at which rows are dropped, and how many are dropped at once. */
const HOUR_NS = 3600e9;
const DROP = 30;

/** The rows; bands are columns. Times are in nanoseconds since the first row. @type {LiveHistory} */
const hour = { times: [], totals: [], used: [], series: {} };

/** Series in the form of the report, until the next row. @type {Map<string, Bands>} */
const prepared = new Map();

/** Returns the running sums of differences. @param {number[]} steps @param {number} scale */
function sums(steps, scale = 1) {
  let sum = 0;
  return steps.map((step) => (sum += step) * scale);
}

/** Replaces all rows. @param {WholeEvent} event */
function loadHistory(event) {
  const { times_ms, totals, used, series } = event.history;
  data.wall_ms = event.start_ms;
  Object.assign(hour, { times: sums(times_ms, 1e6), totals: sums(totals), used, series: {} });
  for (const [by, { bands, others }] of Object.entries(series)) {
    hour.series[by] = { bands: bands.map(({ name, target }) => ({ name, target })), columns: bands.map((band) => sums(band.values)), others };
  }
  changed();
}

/** Adds a row. @param {ChangeEvent} event */
function addRow({ row, after_ms }) {
  const { times, totals, used } = hour;
  times.push((times[times.length - 1] ?? 0) + after_ms * 1e6);
  totals.push(row.total);
  used.push(row.used);
  for (const [by, part] of Object.entries(row.series)) addToSeries(hour.series[by], part, times.length);
  if (times.length > DROP && times[DROP] < times[times.length - 1] - HOUR_NS) {
    [times, totals, used].forEach((list) => list.splice(0, DROP));
    for (const { columns } of Object.values(hour.series)) columns.forEach((column) => column.splice(0, DROP));
  }
  changed();
}

/** @param {LiveSeries} series @param {RowPart} part @param {number} rows */
function addToSeries(series, part, rows) {
  for (const [index, band] of part.bands ?? []) {
    // The past of a replaced band is part of the rest.
    if (series.bands[index]?.target !== band.target || !series.columns[index]) series.columns[index] = Array(rows - 1).fill(0);
    series.bands[index] = band;
  }
  series.columns.forEach((column) => column.push(column[column.length - 1] ?? 0));
  for (const [index, value] of part.values ?? []) series.columns[index][rows - 1] = value;
  series.others = part.others;
}

/** Replaces the time between marks. @param {PhaseItem[]} phases */
function setPhases(phases) {
  const ns = (/** @type {number} */ ms) => (ms - Number(data.wall_ms)) * 1e6;
  data.phases = phases.map(({ label, pid, begin_ms, end_ms }) => ({ label, pid, begin: ns(begin_ms), end: end_ms === null ? null : ns(end_ms) }));
}

/** Updates what depends on all rows. */
function changed() {
  prepared.clear();
  const { times, totals, used } = hour;
  const last = times[times.length - 1] ?? 1000;
  // The newest snapshot is as wide as one second.
  data.span = [times[0] ?? 0, last + 1e9];
  let best = 0;
  totals.forEach((total, row) => { if (total > totals[best]) best = row; });
  data.peak = { bytes: totals[best] ?? 0, ns: times[best] ?? 0 };
  const known = times.map((_, row) => row).filter((row) => used[row] !== null);
  const name = "used memory of all GPUs";
  const points = { times: known.map((row) => times[row]), sizes: known.map((row) => Number(used[row])) };
  if (data.overlays.length === 0 && known.length > 0) shownLines.add(name);
  data.overlays = known.length > 0 ? [{ name, note: "as the driver reports it", line: { first: 0, count: 0, part: [0, 0] }, points }] : [];
}

/** Returns bands over time; the rest of each total is the last band. @param {string} by @returns {Bands} */
function seriesOf(by) {
  const known = prepared.get(by);
  if (known) return known;
  const { bands, columns, others } = hour.series[by] ?? { bands: [], columns: [], others: 0 };
  const rows = hour.times.length;
  const rest = hour.totals.map((total, row) => Math.max(0, total - columns.reduce((sum, column) => sum + column[row], 0)));
  const hasRest = rest.some((bytes) => bytes > 0);
  const all = hasRest ? [...columns, rest] : columns;
  const width = all.length;
  const values = new Float64Array(rows * width);
  const peaks = new Float64Array(width);
  all.forEach((column, band) => {
    for (let row = 0; row < rows; row++) {
      values[row * width + band] = column[row];
      if (column[row] > peaks[band]) peaks[band] = column[row];
    }
  });
  const series = {
    by, rows, first: 0, part: /** @type {Part} */ ([0, 0]), bands: hasRest ? [...bands, { rest: Math.max(1, others) }] : bands,
    times: Float64Array.from(hour.times), totals: Float64Array.from(hour.totals), values, peaks,
  };
  prepared.set(by, series);
  return series;
}

/** Returns the size of a band in the legend: its newest value. @param {Bands} series @param {number} index */
const legendSize = (series, index) => (series.rows > 0 ? series.values[(series.rows - 1) * series.bands.length + index] : 0);

/** Not on this page: bands open the details by their target. @param {number} _site */
function pickSite(_site) {}
