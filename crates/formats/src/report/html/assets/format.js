// Formatting of numbers and names.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** @param {number} bytes */
function sizeText(bytes) {
  const size = Math.abs(bytes);
  if (size < 1024) return `${Math.round(bytes)} B`;
  let unit = 1;
  // Two decimals never round to 1024.00 of the smaller unit.
  while (unit + 1 < UNITS.length && size / 1024 ** unit >= 1023.995) unit++;
  return `${(bytes / 1024 ** unit).toFixed(2)} ${UNITS[unit]}`;
}

/** @param {number} count */
const countText = (count) => Math.round(count).toLocaleString("en");

/** @param {number} part @param {number} whole */
const shareText = (part, whole) => `${((whole ? part / whole : 0) * 100).toFixed(1)} %`;

/** Returns a count with its noun: `1 allocation`, `2 allocations`. @param {number} count @param {string} thing */
const some = (count, thing) => `${countText(count)} ${thing}${count === 1 ? "" : "s"}`;

/** Formats a duration in a suitable unit. @param {number} nanos */
function spanText(nanos) {
  const size = Math.abs(nanos);
  if (size < 1e3) return `${Math.round(nanos)} ns`;
  if (size < 1e6) return `${(nanos / 1e3).toFixed(1)} µs`;
  if (size < 1e9) return `${(nanos / 1e6).toFixed(1)} ms`;
  if (size < 120e9) return `${(nanos / 1e9).toFixed(3)} s`;
  if (size < 7200e9) return `${(nanos / 60e9).toFixed(1)} min`;
  return `${(nanos / 3600e9).toFixed(2)} h`;
}

/** Formats a time: seconds since the start of the file, or the local time of day. @param {number} nanos */
function timeText(nanos, step = 1e5) {
  const digits = clamp(Math.ceil(-Math.log10(Math.max(step, 1) / 1e9)), 0, 9);
  if (state.clock && data.wall_ms !== null) {
    const date = new Date(data.wall_ms + nanos / 1e6);
    if (Number.isNaN(date.getTime())) return `${(nanos / 1e9).toFixed(digits)} s`;
    const rest = digits > 0 ? "." + date.toISOString().slice(20, 23) : "";
    return date.toISOString().slice(11, 19) + rest;
  }
  return `${(nanos / 1e9).toFixed(digits)} s`;
}

/** Formats a time with all digits, for details. @param {number} nanos */
function fullTimeText(nanos) {
  const since = `${(nanos / 1e9).toFixed(6)} s`;
  if (data.wall_ms === null) return since;
  const date = new Date(data.wall_ms + nanos / 1e6);
  return Number.isNaN(date.getTime()) ? since : `${since} (${date.toISOString().slice(0, 23).replace("T", " ")})`;
}

/** @param {number | null} device */
const deviceText = (device) => (device === null || device < 0 ? "gpu_?" : `gpu_${device}`);

/** @param {number} pid */
function processText(pid) {
  const known = data.processes.find((process) => process.pid === pid);
  if (known && known.name) return `${pid} ${known.name}`;
  // Some files have no process ids.
  return pid === 0 ? "unknown" : String(pid);
}

/** @param {number} site */
function siteText(site) {
  const stack = data.stack_list[site];
  return stack ? stack.label : "(no call stack)";
}

/** Returns the texts of a frame, and whether it is a library frame. @param {number} marked */
function frameOf(marked) {
  const [name, file, line, module] = data.frames[Math.floor(marked / 2)];
  /** @param {number | null} index */
  const text = (index) => (index === null ? "" : data.texts[index]);
  /** @param {string} path */
  const base = (path) => path.slice(path.lastIndexOf("/") + 1) || path;
  const where = file !== null ? text(file) + (line ? `:${line}` : "") : base(text(module));
  return { name: text(name), where, module: text(module), foreign: marked % 2 === 1 };
}

/** Returns all text of a stack in lower case, for searches. @param {number} site */
function searchText(site) {
  const stack = data.stack_list[site];
  if (!stack) return "(no call stack)";
  if (stack.search === undefined) {
    const parts = stack.frames.map(frameOf).map((frame) => `${frame.name}\n${frame.where}\n${frame.module}`);
    stack.search = parts.join("\n").toLowerCase();
  }
  return stack.search;
}

/** @param {number} site */
const isFound = (site) => state.search === "" || searchText(site).includes(state.search);

/** @type {Record<string, string>} */
const SOURCES = { recording: "recording", nsys: "Nsight Systems export", torch: "PyTorch memory snapshot", sanitizer: "compute-sanitizer leak report" };

const ENDS = ["", "freed", "freed: its address was allocated again", "released with its context or module", "not freed: its process ended"];

/** Returns the ticks of a size axis: round in binary units. @param {number} maxSize @param {number} wanted */
function sizeSteps(maxSize, wanted) {
  const rough = Math.max(maxSize, 1) / Math.max(wanted, 1);
  let step = 2 ** Math.ceil(Math.log2(rough));
  // 1, 2, 4, … 512 of a unit; half the step if there are too few ticks.
  if (maxSize / step < wanted * 0.7 && step >= 2) step /= 2;
  const list = [];
  for (let at = 0; at <= maxSize * 1.0001 && list.length < 50; at += step) list.push(at);
  return list;
}

/** Formats a size tick, without trailing zeros. @param {number} bytes */
function axisText(bytes) {
  if (bytes === 0) return "0";
  let unit = 0;
  while (unit + 1 < UNITS.length && bytes / 1024 ** unit >= 1024) unit++;
  return `${Number((bytes / 1024 ** unit).toFixed(2))} ${UNITS[unit]}`;
}

/** Returns the ticks of a time axis: 1, 2 or 5 times a power of ten, or parts of minutes and hours. @param {number} from @param {number} to @param {number} wanted */
function timeSteps(from, to, wanted) {
  const rough = (to - from) / Math.max(wanted, 1);
  const long = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
  let step = long.map((seconds) => seconds * 1e9).find((nanos) => nanos >= rough);
  if (rough < 1e9) {
    const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    step = [1, 2, 5, 10].map((times) => times * power).find((nanos) => nanos >= rough) || power * 10;
  }
  if (!step) step = Math.ceil(rough / 86400e9) * 86400e9;
  const list = [];
  // Round times of day, not round offsets from the start.
  const offset = state.clock && data.wall_ms !== null ? (data.wall_ms % 86400000) * 1e6 : 0;
  for (let at = Math.ceil((from + offset) / step) * step - offset; at <= to && list.length < 100; at += step) list.push(at);
  return { list, step };
}
