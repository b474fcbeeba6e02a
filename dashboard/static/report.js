// One file of a job to attach to a ticket: what the page says, its pictures and its figures.

import { element } from "./dom.js";
import { fileName, save } from "./export.js";
import { formatDate } from "./format.js";
import { asPicture } from "./picture.js";
import { buildTable } from "./table.js";

const MAX_ROWS = 50;
// The file has no style sheet beside it, and is read and printed on white.
const STYLE = `
body { font: 15px/1.5 system-ui, sans-serif; color: #1a2130; background: #fff; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
img { max-width: 100%; height: auto; border: 1px solid #dfe3ea; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 0.2rem 0.6rem; border-bottom: 1px solid #dfe3ea; text-align: left; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.note { color: #566074; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.2rem 1rem; }
dt { color: #566074; } details { margin: 0.5rem 0; }`;

export function saveReport(store) {
  save(fileName("libra", store.name, "report.html"), [reportText(store)], "text/html");
}

// Built as a document and written out, so that whatever a name holds stays text.
export function reportText(store) {
  const page = document.implementation.createHTMLDocument(`Libra report: ${store.name}`);
  page.documentElement.lang = "en";
  const charset = element("meta", { charset: "utf-8" });
  // Nothing in the file may run or be fetched, wherever it is opened.
  const policy = element("meta", {
    "http-equiv": "Content-Security-Policy",
    content: "default-src 'none'; img-src data:; style-src 'unsafe-inline'",
  });
  page.head.prepend(charset, policy);
  page.body.append(...head(store), ...panels(page));
  const data = element("details", {}, element("summary", {}, "All figures of the head line, in JSON"));
  data.append(element("pre", {}, JSON.stringify(store.summary, null, 1)));
  page.body.append(data);
  // As text: the page that is shown allows no style sheet within a page, not even in another one.
  const whole = new XMLSerializer().serializeToString(page.documentElement);
  const text = whole.replace("</head>", `<style>${STYLE}</style></head>`);
  return `<!doctype html>\n${text}\n`;
}

function head(store) {
  const { summary } = store;
  const figures = [...document.querySelectorAll("libra-headline .figure")].map((figure) => {
    const [value, note] = figure.querySelectorAll("dd");
    const text = [value.textContent, note.textContent].filter(Boolean).join(": ");
    return [figure.querySelector("dt").textContent, text];
  });
  const list = figures.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]);
  const since = document.getElementById("since")?.textContent ?? "";
  const made = [
    formatDate(Date.now() / 1000),
    `step ${summary.step ?? "none"}`,
    `${summary.world_size} ranks`,
    location.href,
  ];
  return [
    element("h1", {}, `Job ${store.name}`),
    element("p", {}, summary.diagnosis),
    element("p", {}, since),
    element("p", { class: "note" }, made.join(" · ")),
    element("dl", {}, ...list),
  ];
}

function panels(page) {
  return [...document.querySelectorAll("#content .panel")]
    .filter((panel) => panel.dataset.state === "ready" && !panel.hidden)
    .map((panel) => section(page, panel));
}

function section(page, panel) {
  const { title, about } = panel.constructor;
  const parts = [element("h2", {}, title), element("p", { class: "note" }, about)];
  if (panel.sentence) parts.push(element("p", {}, panel.sentence));
  const picture = asPicture(panel.canvases());
  if (picture) {
    // Made in the page that is written: the one that is shown loads no such pictures.
    const image = page.createElement("img");
    image.src = picture.toDataURL("image/png");
    image.alt = panel.sentence || title;
    parts.push(image);
  }
  const table = panel.table?.();
  if (table?.rows.length) {
    const all = table.rows.length;
    const summary = element("summary", {}, all > MAX_ROWS ? `Figures (${MAX_ROWS} of ${all} rows)` : "Figures");
    parts.push(element("details", {}, summary, buildTable(table, MAX_ROWS)));
  }
  return element("section", {}, ...parts);
}
