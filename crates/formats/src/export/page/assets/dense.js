// Bands where there is more to show than pixels: painted pixel by pixel, which takes the same time however
// much there is. Up to the lowest of a column it is solid, from there to the highest it is light.

/** For each column, the rows of its highest and lowest sum; a column without a row shows the one before. */
function columnRows(course, from, to, columns) {
  const [high, low] = [new Int32Array(columns).fill(-1), new Int32Array(columns).fill(-1)];
  const first = after(course.times, from);
  const last = after(course.times, to);
  const scale = columns / (to - from);
  let column = 0;
  let before = first - 1;
  for (let row = first; row < last; row++) {
    const here = Math.min(columns - 1, Math.floor((course.times[row] - from) * scale));
    // What held until now is what the columns between show, and where this one begins.
    for (; column <= here; column++) high[column] = low[column] = before;
    if (high[here] < 0 || course.totals[row] > course.totals[high[here]]) high[here] = row;
    if (low[here] < 0 || course.totals[row] < course.totals[low[here]]) low[here] = row;
    before = row;
  }
  for (; column < columns; column++) high[column] = low[column] = before;
  return { high, low };
}

/** A colour as the four bytes of a pixel. */
function pixelOf(colour, alpha) {
  const part = (at) => parseInt(colour.slice(at, at + 2), 16);
  const bytes = new Uint8ClampedArray([part(1), part(3), part(5), Math.round(alpha * 255)]);
  return new Uint32Array(bytes.buffer)[0];
}

let densePaper = null;

/** Paints the bands of a view. */
function paintDense(context, view, course, chosen) {
  const scale = window.devicePixelRatio || 1;
  const columns = Math.max(1, Math.floor(view.inner * scale));
  const rows = Math.max(1, Math.floor((view.height - view.pad.top - view.pad.bottom) * scale));
  densePaper = densePaper || document.createElement("canvas");
  [densePaper.width, densePaper.height] = [columns, rows];
  const paper = densePaper.getContext("2d");
  const image = paper.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const { high, low } = columnRows(course, state.from, state.to, columns);
  const width = course.bands.length;
  const inks = course.bands.map((band, index) => {
    const colour = bandColour(index, !!band.rest);
    const alpha = chosen === null || chosen === index ? 0.92 : 0.22;
    return [pixelOf(colour, alpha), pixelOf(colour, alpha * 0.55)];
  });
  const end = Math.ceil((view.x(data.span[1]) - view.pad.left) * scale);
  for (let column = 0; column < Math.min(columns, end); column++) {
    const row = high[column];
    if (row < 0) continue;
    const solid = rows - Math.round((course.totals[low[column]] / view.most) * rows);
    let sum = 0;
    let bottom = rows;
    for (let band = 0; band < width; band++) {
      sum += course.values[row * width + band];
      const top = Math.max(0, rows - Math.round((sum / view.most) * rows));
      for (let y = bottom - 1; y >= top; y--) pixels[y * columns + column] = inks[band][y >= solid ? 0 : 1];
      bottom = Math.min(bottom, top);
    }
  }
  paper.putImageData(image, 0, 0);
  context.drawImage(densePaper, view.pad.left, view.pad.top, view.inner, view.height - view.pad.top - view.pad.bottom);
}
