// Lists that the agent updates by key, and tables of them: rows stay in place, so that focus and scroll position stay.

/** A list in the agent's order. @template {{ key?: string, id?: string }} Entry */
class KeyedList {
  constructor() {
    /** @type {string[]} */
    this.order = [];
    /** @type {Map<string, Entry>} */
    this.entries = new Map();
  }

  /** @param {ListChange<Entry> | undefined} change */
  update(change) {
    if (!change) return;
    for (const entry of change.entries) this.entries.set(entry.key ?? entry.id ?? "", entry);
    if (!change.order) return;
    this.order = change.order;
    const known = new Set(this.order);
    for (const key of [...this.entries.keys()]) {
      if (!known.has(key)) this.entries.delete(key);
    }
  }

  /** @returns {Entry[]} */
  get all() {
    return this.order.flatMap((key) => this.entries.get(key) ?? []);
  }
}

/** A table of text cells. `link` is the column with the button that opens a row. */
class CellTable {
  /** @param {HTMLElement} holder @param {CellTableOptions} options */
  constructor(holder, options) {
    this.options = options;
    this.head = el("tr");
    this.body = el("tbody");
    this.empty = el("p", { class: "empty" }, options.empty);
    this.titles = "";
    /** @type {Map<string, { node: HTMLTableRowElement, cells: HTMLElement[], row: CellRow }>} */
    this.shown = new Map();
    const table = el("table", { id: options.id }, el("caption", { class: "spoken" }, options.caption), el("thead", {}, this.head), this.body);
    this.scroll = el("div", { class: "scroll" }, table);
    holder.append(this.scroll, this.empty);
  }

  /** @param {PageColumn[]} columns @param {CellRow[]} rows */
  fill(columns, rows) {
    const titles = columns.map((column) => column.title).join("\n");
    if (titles !== this.titles) {
      this.titles = titles;
      this.head.replaceChildren(...columns.map((column) => el("th", { scope: "col", class: this.classOf(column) }, column.title)));
      this.shown.clear();
      this.body.replaceChildren();
    }
    const keys = new Set(rows.map((row) => row.key));
    for (const [key, { node }] of this.shown) {
      if (keys.has(key)) continue;
      node.remove();
      this.shown.delete(key);
    }
    rows.forEach((row, index) => {
      const known = this.shown.get(row.key) ?? this.create(columns, row);
      this.show(known, row);
      if (this.body.children[index] !== known.node) this.body.insertBefore(known.node, this.body.children[index] ?? null);
    });
    this.scroll.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
  }

  /** @param {PageColumn} column */
  classOf(column) {
    return `${column.right ? "n" : ""} ${(this.options.minor ?? []).includes(column.title) ? "minor" : ""}`.trim();
  }

  /** @param {PageColumn[]} columns @param {CellRow} row */
  create(columns, row) {
    /** @type {HTMLElement[]} */
    const cells = [];
    const node = el("tr", { class: "pick" });
    columns.forEach((column, index) => {
      const isLink = index === this.options.link;
      const inner = isLink ? el("button", { type: "button", class: "site" }) : el("td");
      inner.classList.add(...this.classOf(column).split(" ").filter(Boolean));
      cells.push(inner);
      node.append(isLink ? el("td", {}, inner) : inner);
    });
    const known = { node, cells, row };
    node.addEventListener("click", () => this.options.pick(known.row));
    this.shown.set(row.key, known);
    return known;
  }

  /** @param {{ node: HTMLTableRowElement, cells: HTMLElement[], row: CellRow }} known @param {CellRow} row */
  show(known, row) {
    known.row = row;
    const name = `pick ${row.state ?? ""}`;
    if (known.node.className !== name) known.node.className = name;
    known.cells.forEach((cell, index) => {
      if (cell.textContent !== row.cells[index]) cell.textContent = row.cells[index];
    });
    if (this.options.isPicked?.(row)) known.node.setAttribute("aria-selected", "true");
    else known.node.removeAttribute("aria-selected");
  }
}
