// Tables that sort by any column, with a button for more rows.

const STEP = 100;

/**
 * A table. Columns are `{name, numeric, value(row), show(row), title}`; `pick(row)` handles a click,
 * `isPicked(row)` returns whether the row is selected.
 * @template Row
 */
class Table {
  /** @param {HTMLElement} holder @param {Column<Row>[]} columns @param {TableOptions<Row>} options */
  constructor(holder, columns, options) {
    this.columns = columns;
    this.options = options;
    this.shown = STEP;
    this.down = true;
    /** @type {Row[]} */
    this.rows = [];
    /** @type {Map<Element, Row>} */
    this.rowOf = new Map();
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

  /** @param {number} index */
  sortBy(index) {
    if (this.sort === index) this.down = !this.down;
    else [this.sort, this.down] = [index, this.columns[index].numeric === true];
    this.fill(this.rows);
  }

  showMore() {
    this.shown += STEP * 5;
    this.fill(this.rows);
  }

  /** Shows these rows. @param {Row[]} rows */
  fill(rows) {
    this.rows = rows;
    const { value, numeric } = this.columns[this.sort];
    const sign = this.down ? -1 : 1;
    /** @param {Row} one @param {Row} other */
    const compare = (one, other) => (numeric ? Number(value(one)) - Number(value(other)) : String(value(one)).localeCompare(String(value(other))));
    const sorted = [...rows].sort((one, other) => sign * compare(one, other));
    this.rowOf.clear();
    [...this.head.children].forEach((cell, index) => {
      if (index === this.sort) cell.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    this.body.replaceChildren(...sorted.slice(0, this.shown).map((row) => this.row(row)));
    this.mark();
    this.more.hidden = rows.length <= this.shown;
    this.more.textContent = `Show more (${countText(Math.max(0, rows.length - this.shown))} left)`;
    if (rows.length === 0) this.body.append(el("tr", {}, el("td", { class: "empty", colspan: this.columns.length }, this.options.empty || "Nothing found.")));
  }

  /** @param {Row} row */
  row(row) {
    const { pick } = this.options;
    const cells = this.columns.map((column) => el("td", { class: column.numeric ? "n" : "" }, column.show(row)));
    const node = el("tr", { class: pick ? "pick" : "" }, ...cells);
    this.rowOf.set(node, row);
    if (pick) node.addEventListener("click", () => pick(row));
    return node;
  }

  /** Marks the selected rows without replacing them, so that the focus stays. */
  mark() {
    const { isPicked } = this.options;
    for (const [node, row] of this.rowOf) {
      if (isPicked && isPicked(row)) node.setAttribute("aria-selected", "true");
      else node.removeAttribute("aria-selected");
    }
  }
}

/** Returns the cell of a site: a button, so that it can be reached by keyboard. @param {number} site */
function siteCell(site) {
  return el("button", { type: "button", class: "site" }, siteText(site));
}

/** Returns a size with a bar for its share of the whole. @param {number} bytes @param {number} whole */
function sizeCell(bytes, whole) {
  const wide = whole > 0 ? Math.round((bytes / whole) * 60) : 0;
  return el("span", {}, sizeText(bytes), el("span", { class: "share" }, el("span", { style: { width: `${clamp(wide, 0, 60)}px` } })));
}
