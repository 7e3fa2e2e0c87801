// Bands with more rows than pixels: painted pixel by pixel, so that the cost does not depend on the number of
// rows. Each column is solid up to its lowest total, and light from there to its highest.

/** Returns the rows with the highest and lowest total of each column; a column without rows repeats the previous one. @param {Bands} series @param {number} from @param {number} to @param {number} columns */
function columnRows(series, from, to, columns) {
  const [high, low] = [new Int32Array(columns).fill(-1), new Int32Array(columns).fill(-1)];
  const first = after(series.times, from);
  const last = after(series.times, to);
  const scale = columns / (to - from);
  let column = 0;
  let before = first - 1;
  for (let row = first; row < last; row++) {
    const here = Math.min(columns - 1, Math.floor((series.times[row] - from) * scale));
    // The previous row holds in the columns in between and at the start of this one.
    for (; column <= here; column++) high[column] = low[column] = before;
    if (high[here] < 0 || series.totals[row] > series.totals[high[here]]) high[here] = row;
    if (low[here] < 0 || series.totals[row] < series.totals[low[here]]) low[here] = row;
    before = row;
  }
  for (; column < columns; column++) high[column] = low[column] = before;
  return { high, low };
}

/** Returns a color as the four bytes of a pixel. @param {string} color @param {number} alpha */
function pixelOf(color, alpha) {
  /** @param {number} at */
  const part = (at) => parseInt(color.slice(at, at + 2), 16);
  const bytes = new Uint8ClampedArray([part(1), part(3), part(5), Math.round(alpha * 255)]);
  return new Uint32Array(bytes.buffer)[0];
}

const denseCanvas = document.createElement("canvas");

/** Paints the bands of a view. @param {CanvasRenderingContext2D} context @param {TimeCanvas} view @param {Bands} series @param {number | null} chosen */
function paintDense(context, view, series, chosen) {
  const scale = window.devicePixelRatio || 1;
  const columns = Math.max(1, Math.floor(view.inner * scale));
  const rows = Math.max(1, Math.floor((view.height - view.pad.top - view.pad.bottom) * scale));
  [denseCanvas.width, denseCanvas.height] = [columns, rows];
  const target = contextOf(denseCanvas);
  const image = target.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const { high, low } = columnRows(series, state.from, state.to, columns);
  const width = series.bands.length;
  const inks = series.bands.map((band, index) => {
    const color = bandColor(index, !!band.rest);
    const alpha = chosen === null || chosen === index ? 0.92 : 0.22;
    return [pixelOf(color, alpha), pixelOf(color, alpha * 0.55)];
  });
  const end = Math.ceil((view.x(data.span[1]) - view.pad.left) * scale);
  for (let column = 0; column < Math.min(columns, end); column++) {
    const row = high[column];
    if (row < 0) continue;
    const solid = rows - Math.round((series.totals[low[column]] / view.maxSize) * rows);
    let sum = 0;
    let bottom = rows;
    for (let band = 0; band < width; band++) {
      sum += series.values[row * width + band];
      const top = Math.max(0, rows - Math.round((sum / view.maxSize) * rows));
      for (let y = bottom - 1; y >= top; y--) pixels[y * columns + column] = inks[band][y >= solid ? 0 : 1];
      bottom = Math.min(bottom, top);
    }
  }
  target.putImageData(image, 0, 0);
  context.drawImage(denseCanvas, view.pad.left, view.pad.top, view.inner, view.height - view.pad.top - view.pad.bottom);
}
