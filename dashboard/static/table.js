// Figures as a table, for those who read better than they look.

import { element } from "./dom.js";
import { UNKNOWN } from "./format.js";

// More rows than anyone reads would stop the page; the exports have all of them.
const MAX_ROWS = 200;

export function cellText(value, { format } = {}) {
  if (value === null || value === undefined) return UNKNOWN;
  if (format) return format(value);
  return String(value);
}

export function heading({ name, unit }) {
  return unit ? `${name} (${unit})` : name;
}

function cell(value, column, first) {
  const numeric = typeof value === "number";
  const attributes = numeric ? { class: "number" } : {};
  if (first) return element("th", { scope: "row", ...attributes }, cellText(value, column));
  return element("td", attributes, cellText(value, column));
}

// table: {columns: [{name, unit?, format?}], rows: [[...]], newestLast?}.
export function buildTable({ columns, rows, newestLast = false }, limit = MAX_ROWS) {
  const shown = newestLast ? rows.slice(-limit).reverse() : rows.slice(0, limit);
  const numeric = (at) => typeof shown[0]?.[at] === "number";
  const head = columns.map((column, at) =>
    element("th", { scope: "col", ...(numeric(at) ? { class: "number" } : {}) }, heading(column)),
  );
  const body = shown.map((row) =>
    element("tr", {}, ...row.map((value, at) => cell(value, columns[at], at === 0))),
  );
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body),
  );
}

export function fillTable(box, table) {
  const { rows } = table;
  const parts = [buildTable(table)];
  if (rows.length > MAX_ROWS) {
    parts.push(element("p", { class: "note" }, `${MAX_ROWS} of ${rows.length} rows; exports have all.`));
  }
  box.replaceChildren(...parts);
}
