// The details panel: the selected item with its complete call stack.

/** Returns a call stack, innermost frame first; library frames are dim. @param {number} site */
function stackList(site) {
  const stack = data.stack_list[site];
  if (!stack) return el("p", { class: "empty" }, "No call stack.");
  const list = el("ol", { class: "stack" });
  for (const marked of stack.frames) {
    const frame = frameOf(marked);
    const where = frame.where ? el("div", { class: "where" }, frame.where) : null;
    list.append(el("li", { class: frame.foreign ? "foreign" : "own" }, el("div", {}, frame.name), where));
  }
  const more = stack.deep - stack.frames.length;
  if (more > 0) list.append(el("li", { class: "foreign" }, `… ${some(more, "more frame")}`));
  return list;
}

function clearButton() {
  return el("button", { type: "button", class: "link", onclick: () => change({ site: 0, band: null, life: null }) }, "Clear selection");
}

/** @param {Life} life */
function lifeDetails(life) {
  const age = life.ended === null ? data.span[1] - life.began : life.ended - life.began;
  return [
    heading("Allocation"),
    facts([
      ["Size", `${sizeText(life.bytes)} (${countText(life.bytes)} bytes)`],
      ["Address", el("code", {}, `0x${life.address.toString(16)}`)],
      ["Began", fullTimeText(life.began)],
      ["Ended", life.ended === null ? "live at the end of the file" : `${fullTimeText(life.ended)}, ${ENDS[life.how]}`],
      ["Lived", spanText(age)],
      ["Kind", life.kind],
      ["Device", deviceText(life.device)],
      ["Process", processText(life.pid)],
      ["Thread", life.tid || null],
    ]),
    el("h3", {}, "Call stack"),
    stackList(life.site),
    el("p", {}, el("button", { type: "button", class: "link", onclick: () => pickSite(life.site) }, "All of this site"), " · ", clearButton()),
  ];
}

/** Returns the first allocations of a list as buttons. @param {Life[]} lives */
function lifeButtons(lives) {
  const list = el("ul", { class: "plain" });
  for (const life of lives.slice(0, 12)) {
    const text = `${sizeText(life.bytes)} at ${timeText(life.began)}, ${spanText((life.ended ?? data.span[1]) - life.began)}`;
    list.append(el("li", {}, el("button", { type: "button", class: "link", onclick: () => change({ life }) }, text)));
  }
  return list;
}

/** @param {number} site */
function siteDetails(site) {
  const row = data.site_rows.get(site);
  const lives = livesOf().filter((life) => life.site === site).sort((one, other) => other.bytes - one.bytes);
  /** @type {HTMLElement[]} */
  const content = [heading("Site"), el("p", { class: "name" }, siteText(site))];
  if (row) {
    const [, [left, leftCount, began, beganCount, then, thenCount], freed, peak, peakAt] = row;
    content.push(facts([
      ["Peak", `${sizeText(peak)} at ${timeText(peakAt)}`],
      [`At the file's peak`, `${sizeText(then)} in ${some(thenCount, "allocation")}`],
      ["Held", `${sizeText(left)} in ${some(leftCount, "allocation")}`],
      ["Allocated", `${sizeText(began)} in ${some(beganCount, "allocation")}`],
      ["Freed", some(freed, "allocation")],
    ]));
  }
  content.push(el("h3", {}, "Call stack"), stackList(site));
  if (lives.length > 0) content.push(el("h3", {}, "Biggest allocations"), lifeButtons(lives));
  content.push(el("p", {}, clearButton()));
  return content;
}

/** @param {NonNullable<State["band"]>} chosen */
function bandDetails({ by, index, name, time }) {
  const series = seriesOf(by);
  const row = Math.max(0, after(series.times, time) - 1);
  const bytes = series.values[row * series.bands.length + index];
  const band = series.bands[index];
  /** @type {Record<string, (life: Life) => boolean>} */
  const tests = {
    kind: (life) => life.kind === band.name, process: (life) => life.pid === band.pid, device: (life) => life.device === (band.device ?? -1), site: () => false,
  };
  const lives = band.rest ? [] : livesOf().filter((life) => tests[by](life) && life.began <= time && (life.ended ?? Infinity) > time);
  lives.sort((one, other) => other.bytes - one.bytes);
  /** @type {HTMLElement[]} */
  const content = [
    heading(`Band, by ${by}`),
    el("p", { class: "name" }, swatch(bandColor(index, !!band.rest)), " ", name),
    facts([
      ["At", fullTimeText(time)],
      ["Size then", sizeText(bytes)],
      ["Share then", shareText(bytes, series.totals[row])],
      ["All then", sizeText(series.totals[row])],
      ["Its peak", sizeText(series.peaks[index])],
    ]),
  ];
  if (lives.length > 0) content.push(el("h3", {}, "Biggest allocations live then"), lifeButtons(lives));
  content.push(el("p", {}, clearButton()));
  return content;
}

/** Returns the memory at the peak by site, shown while nothing is selected. */
function peakDetails() {
  /** @type {HTMLElement[]} */
  const content = [heading("At the peak"), el("p", {}, `${sizeText(data.peak.bytes)} of ${data.memory}, at ${fullTimeText(data.peak.ns)}`)];
  const rows = data.sites.rows.filter((row) => row[1][4] > 0).sort((one, other) => other[1][4] - one[1][4]);
  const list = el("ul", { class: "plain", id: "at-peak" });
  for (const [site, sums] of rows.slice(0, 10)) {
    const name = el("button", { type: "button", class: "link", onclick: () => pickSite(site) }, siteText(site));
    list.append(el("li", {}, swatch(siteColor(site)), el("span", {}, `${sizeText(sums[4])}, ${shareText(sums[4], data.peak.bytes)}`, el("br"), name)));
  }
  if (rows.length > 10) list.append(el("li", {}, el("span"), `and ${some(rows.length - 10, "more site")}`));
  content.push(list, el("p", { class: "note" }, "Select a band, allocation, block or site to see its size, lifetime and call stack."));
  return content;
}

function startDetails() {
  const show = () => {
    const panel = byId("details");
    if (state.life) panel.replaceChildren(...lifeDetails(state.life));
    else if (state.block) panel.replaceChildren(...blockDetails(state.block));
    else if (state.band) panel.replaceChildren(...bandDetails(state.band));
    else if (state.site) panel.replaceChildren(...siteDetails(state.site));
    else panel.replaceChildren(...peakDetails());
    panel.scrollTop = 0;
  };
  watch("life band site block clock theme", show);
  show();
}

/** @param {number} site */
function pickSite(site) {
  change({ site, band: null, life: null, block: null, by: site ? "site" : state.by });
}
