// Starts the report.

function openView() {
  /** @type {Record<string, () => void>} */
  const opens = {
    leaks: () => change({ list: "leaks" }),
    growing: () => change({ list: "growing" }),
    segments: () => change({ chart: "segments" }),
    peak: () => change({ list: "flame" }),
  };
  if (opens[data.opens]) opens[data.opens]();
  else if (data.segments.rows.length > 0 && data.changes === 0) change({ chart: "segments" });
}

async function start() {
  try {
    await load();
  } catch (error) {
    byId("alarms").append(el("p", {}, `This browser is not supported: ${error}. Use a current version.`));
    throw error;
  }
  [state.from, state.to] = wholeTime();
  // A single band says nothing that the total does not.
  const several = (/** @type {string} */ by) => (data.series_by.get(by)?.bands.length ?? 0) > 1;
  if (several("site") || !several("kind")) state.by = "site";
  startTheme();
  startCards();
  startTimeline();
  startLives();
  startSegments();
  startSites();
  startFlame();
  startLeaks();
  startGrowing();
  startFacts();
  startDetails();
  const leaks = data.leaks.counted.total;
  tabs(byId("chart-tabs"), "chart", [["timeline", "Timeline"], ["lives", "Allocations"], ["segments", "Allocator state"]]);
  tabs(byId("list-tabs"), "list", [["sites", `Sites (${countText(data.sites.total)})`], ["flame", "Flame graph"], ["leaks", `Held (${countText(leaks)})`], ["growing", `Growing (${countText(data.growing.leaks_total)})`], ["facts", "File"]]);
  startZoom();
  startClock();
  startSearch();
  openView();
  document.documentElement.dataset.ready = "true";
}

start();
