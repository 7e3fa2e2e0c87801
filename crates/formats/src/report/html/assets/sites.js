// The table of allocation sites.

function startSites() {
  const holder = byId("view-sites");
  /** @param {string} name @param {number} index @param {string} title @returns {Column<SiteRow>} */
  const size = (name, index, title) => ({ name, title, numeric: true, value: (row) => row[1][index], show: (row) => sizeText(row[1][index]) });
  /** @param {string} name @param {number} index @param {string} title @returns {Column<SiteRow>} */
  const count = (name, index, title) => ({ name, title, numeric: true, value: (row) => row[1][index], show: (row) => countText(row[1][index]) });
  /** @type {Column<SiteRow>[]} */
  const columns = [
    { name: "site", value: (row) => siteText(row[0]), show: (row) => siteCell(row[0]) },
    { name: "peak", title: "Peak of this site", numeric: true, first: true, value: (row) => row[3], show: (row) => sizeCell(row[3], data.peak.bytes) },
    size("at the peak", 4, "Live at the overall peak"),
    size("held", 0, "Live at the end of the file, or of its process"),
    count("count", 1, "Allocations held at the end"),
    size("allocated", 2, "Total allocated at this site"),
    count("allocations", 3, "Total allocations at this site"),
  ];
  const table = new Table(holder, columns, {
    id: "sites", caption: "Sites", pick: (row) => pickSite(row[0]), isPicked: (row) => state.site !== 0 && row[0] === state.site,
    empty: data.sites.rows.length ? "No site matches the search." : "Nothing was allocated.",
  });
  const fill = () => table.fill(data.sites.rows.filter((row) => isFound(row[0])));
  watch("search", fill);
  watch("site", () => table.mark());
  fill();
  const more = data.sites.total - data.sites.rows.length;
  if (more > 0) {
    const [left, , began] = data.sites.rest;
    holder.append(el("p", { class: "note" }, `The ${countText(data.sites.rows.length)} sites with the highest peaks. The other ${countText(more)} together: ${sizeText(began)} allocated, ${sizeText(left)} held.`));
  }
}
