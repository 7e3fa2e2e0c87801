// The data of the report: a JSON object, and blocks of numbers with seven bits per byte.

class Numbers {
  /** @param {Uint8Array} bytes @param {Part} part */
  constructor(bytes, [begin, length]) {
    this.bytes = bytes.subarray(begin, begin + length);
    this.view = new DataView(this.bytes.buffer, this.bytes.byteOffset, this.bytes.length);
    this.at = 0;
  }

  next() {
    let number = 0;
    let scale = 1;
    for (;;) {
      const byte = this.bytes[this.at++];
      if (byte === undefined) return number;
      if (byte < 128) return number + byte * scale;
      number += (byte - 128) * scale;
      scale *= 128;
    }
  }

  step() {
    const number = this.next();
    return number % 2 === 1 ? -(number - 1) / 2 : number / 2;
  }

  whole() {
    const number = this.view.getBigUint64(this.at, true);
    this.at += 8;
    return number;
  }
}

/** @param {string} text @returns {Uint8Array<ArrayBuffer>} */
function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** All data of the report; filled by `load`. */
const data = /** @type {ReportData} */ ({});

async function load() {
  const holder = byId("data");
  const packed = fromBase64(holder.textContent ?? "");
  holder.remove();
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(raw.buffer).getUint32(0, true);
  Object.assign(data, JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + length))));
  data.bytes = raw.subarray(4 + length);
  data.stack_list = readStacks();
  data.site_rows = new Map(data.sites.rows.map((row) => [row[0], row]));
  data.series_by = new Map(data.series.map((series) => [series.by, series]));
  for (const one of [...data.lines, ...data.overlays]) one.points = readLine(one.line);
}

/** Returns the stacks by number, from 1: a label, and frames with a flag for library frames. */
function readStacks() {
  const numbers = new Numbers(data.bytes, data.stacks.part);
  /** @type {(Stack | null)[]} */
  const list = [null];
  for (let i = 0; i < data.stacks.count; i++) {
    const label = data.texts[numbers.next()];
    const deep = numbers.next();
    const frames = [];
    for (let left = numbers.next(); left > 0; left--) frames.push(numbers.next());
    list.push({ label, deep, frames });
  }
  return list;
}

/** Decodes a line: times and sizes. @param {Line} line */
function readLine({ first, count, part }) {
  const numbers = new Numbers(data.bytes, part);
  const times = new Float64Array(count);
  const sizes = new Float64Array(count);
  let [at, size] = [first, 0];
  for (let i = 0; i < count; i++) {
    times[i] = at += numbers.next();
    sizes[i] = size += numbers.step();
  }
  return { times, sizes };
}

/** Returns bands over time, decoded on first use. `values` is row-major: all bands of a row together. @param {string} by */
function seriesOf(by) {
  const series = /** @type {Bands} */ (data.series_by.get(by));
  if (series.times) return series;
  const numbers = new Numbers(data.bytes, series.part);
  const [rows, width] = [series.rows, series.bands.length];
  series.times = new Float64Array(rows);
  series.values = new Float64Array(rows * width);
  series.totals = new Float64Array(rows);
  series.peaks = new Float64Array(width);
  const now = new Float64Array(width);
  let at = series.first;
  for (let row = 0; row < rows; row++) {
    series.times[row] = at += numbers.next();
    for (let left = numbers.next(); left > 0; left--) {
      const band = numbers.next();
      now[band] += numbers.step();
    }
    let total = 0;
    for (let band = 0; band < width; band++) {
      total += now[band];
      if (now[band] > series.peaks[band]) series.peaks[band] = now[band];
    }
    series.values.set(now, row * width);
    series.totals[row] = total;
  }
  return series;
}

/** Returns the size of a band in the legend: its peak. @param {Bands} series @param {number} index */
const legendSize = (series, index) => series.peaks[index];

/** Returns the largest allocations, decoded on first use. */
function livesOf() {
  if (data.lives) return data.lives;
  const { count, first, part } = data.allocations;
  const numbers = new Numbers(data.bytes, part);
  /** @type {Life[]} */
  const list = [];
  let at = first;
  for (let i = 0; i < count; i++) {
    const began = (at += numbers.next());
    const how = numbers.next();
    const age = numbers.next();
    list.push({
      began,
      ended: how === 0 ? null : began + age,
      how,
      bytes: numbers.next(),
      pid: numbers.next(),
      tid: numbers.next(),
      device: numbers.next() - 1,
      kind: data.kind_names[numbers.next()],
      site: numbers.next(),
      address: numbers.whole(),
      times: [],
      offsets: [],
    });
  }
  data.lives = list;
  return list;
}

/** Returns segments with their blocks, decoded on first use. */
function segmentsOf() {
  const { rows, part } = data.segments;
  if (rows.length === 0 || Array.isArray(rows[0].list)) return rows;
  const numbers = new Numbers(data.bytes, part);
  for (const segment of rows) {
    segment.list = [];
    for (let left = segment.blocks; left > 0; left--) {
      const [begin, bytes, requested] = [numbers.next(), numbers.next(), numbers.next()];
      segment.list.push({ begin, bytes, requested, state: numbers.next(), site: numbers.next(), segment });
    }
  }
  return rows;
}
