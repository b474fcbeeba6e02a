// Taking a view away: its figures as CSV or JSON, its picture as PNG.

import { element } from "./dom.js";
import { asPicture, tablePicture } from "./picture.js";
import { heading } from "./table.js";

// Spreadsheets run cells that begin with these as formulas.
const FORMULA = /^[=+\-@\t\r]/;

function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = String(value);
  const safe = FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function asCsv({ columns, rows }) {
  const lines = [columns.map(heading), ...rows];
  return `${lines.map((line) => line.map(csvCell).join(",")).join("\r\n")}\r\n`;
}

export function asJson({ columns, rows }) {
  const names = columns.map(({ name }) => name);
  const records = rows.map((row) => Object.fromEntries(row.map((value, i) => [names[i], value])));
  const units = Object.fromEntries(columns.filter(({ unit }) => unit).map((c) => [c.name, c.unit]));
  return `${JSON.stringify({ units, rows: records }, null, 1)}\n`;
}

export function save(name, parts, type) {
  const url = URL.createObjectURL(new Blob(parts, { type }));
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// A name that any file system takes.
export function fileName(...parts) {
  return parts.join("-").replace(/[^A-Za-z0-9._-]+/g, "_").slice(0, 120);
}

function savePicture(panel, name) {
  const picture = asPicture(panel.canvases()) ?? tablePicture(panel.constructor.title, panel.table());
  picture.toBlob((blob) => save(`${name}.png`, [blob], "image/png"));
}

// panel: has id, table(), canvases() and store.
export function exportMenu(panel) {
  const ways = {
    CSV: (name) => save(`${name}.csv`, [asCsv(panel.table())], "text/csv"),
    JSON: (name) => save(`${name}.json`, [asJson(panel.table())], "application/json"),
    PNG: (name) => savePicture(panel, name),
  };
  const menu = element("details", { class: "menu" }, element("summary", {}, "Export"));
  const list = element("div", { class: "choices" });
  for (const [way, run] of Object.entries(ways)) {
    const label = `${panel.constructor.title} as ${way}`;
    const button = element("button", { type: "button", class: "quiet", "aria-label": label }, way);
    button.addEventListener("click", () => {
      run(fileName("libra", panel.store?.name ?? "jobs", panel.id));
      menu.open = false;
      menu.firstElementChild.focus();
    });
    list.append(button);
  }
  menu.append(list);
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.firstElementChild.focus();
  });
  return menu;
}
