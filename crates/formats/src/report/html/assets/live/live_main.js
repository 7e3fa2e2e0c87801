// Starts the live page.

function startLive() {
  Object.assign(state, { by: "process", list: "processes", clock: true });
  startTheme();
  startTimeline();
  startLists();
  startZoom();
  startSearch();
  startDetails();
  startLogin(follow);
  const pause = byId("pause");
  pause.addEventListener("click", () => {
    live.paused = !live.paused;
    pause.setAttribute("aria-pressed", String(live.paused));
    if (live.paused) {
      connection?.abort();
      showConnection("paused", false);
    } else follow();
  });
  // A page that is not visible costs the agent nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) connection?.abort();
    else if (!live.paused && byId("login").hidden) follow();
  });
  follow();
}

startLive();
