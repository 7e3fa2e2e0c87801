// Tables that sort by any column, with a button for more rows.

const STEP = 100;

/**
 * A table. Columns are `{name, numeric, value(row), show(row), title}`; `pick(row)` handles a click,
 * `isPicked(row)` returns whether the row is selected.
 */
class Table {
  constructor(holder, columns, options) {
    Object.assign(this, { columns, shown: STEP, sort: 0, down: true, rows: [], ...options });
    this.head = el("tr");
    this.body = el("tbody");
    this.more = el("button", { type: "button", class: "more-rows", onclick: () => this.showMore() });
    this.table = el("table", { id: options.id }, el("caption", { class: "spoken" }, options.caption), el("thead", {}, this.head), this.body);
    holder.append(el("div", { class: "scroll" }, this.table), this.more);
    columns.forEach((column, index) => {
      const title = column.title || null;
      const button = el("button", { type: "button", title, onclick: () => this.sortBy(index) }, column.name);
      this.head.append(el("th", { class: column.numeric ? "n" : "", scope: "col" }, button));
    });
    this.sort = Math.max(0, columns.findIndex((column) => column.first));
  }

  sortBy(index) {
    if (this.sort === index) this.down = !this.down;
    else [this.sort, this.down] = [index, this.columns[index].numeric];
    this.fill(this.rows);
  }

  showMore() {
    this.shown += STEP * 5;
    this.fill(this.rows);
  }

  /** Shows these rows. */
  fill(rows) {
    this.rows = rows;
    const { value, numeric } = this.columns[this.sort];
    const sign = this.down ? -1 : 1;
    const compare = numeric ? (one, other) => value(one) - value(other) : (one, other) => String(value(one)).localeCompare(String(value(other)));
    const sorted = [...rows].sort((one, other) => sign * compare(one, other));
    [...this.head.children].forEach((cell, index) => {
      if (index === this.sort) cell.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    this.body.replaceChildren(...sorted.slice(0, this.shown).map((row) => this.row(row)));
    if (this.isPicked) this.mark();
    this.more.hidden = rows.length <= this.shown;
    this.more.textContent = `Show more (${countText(Math.max(0, rows.length - this.shown))} left)`;
    if (rows.length === 0) this.body.append(el("tr", {}, el("td", { class: "empty", colspan: this.columns.length }, this.empty || "Nothing found.")));
  }

  row(row) {
    const cells = this.columns.map((column) => el("td", { class: column.numeric ? "n" : "" }, column.show(row)));
    const node = el("tr", { class: this.pick ? "pick" : "" }, ...cells);
    node.row = row;
    if (this.pick) node.addEventListener("click", () => this.pick(row));
    return node;
  }

  /** Marks the selected rows without replacing them, so that the focus stays. */
  mark() {
    for (const node of this.body.children) {
      if (node.row && this.isPicked(node.row)) node.setAttribute("aria-selected", "true");
      else node.removeAttribute("aria-selected");
    }
  }
}

/** Returns the cell of a site: a button, so that it can be reached by keyboard. */
function siteCell(site) {
  return el("button", { type: "button", class: "site" }, siteText(site));
}

/** Returns a size with a bar for its share of the whole. */
function sizeCell(bytes, whole) {
  const wide = whole > 0 ? Math.round((bytes / whole) * 60) : 0;
  return el("span", {}, sizeText(bytes), el("span", { class: "share" }, el("span", { style: { width: `${clamp(wide, 0, 60)}px` } })));
}
