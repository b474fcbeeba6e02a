// What other pool sizes would do, with this job's own lengths and measured model.

import { element, numberCell, scrollBox } from "./dom.js";
import { formatPercent, formatRatio, formatSeconds } from "./format.js";
import { Panel } from "./panel.js";

const MEETINGS = { micro_batch: "Ranks meet in every micro-batch", step: "Ranks meet once a step" };
const COLUMNS = [
  { name: "CP groups a pool" },
  { name: "predicted skew", format: formatRatio },
  { name: "predicted step", unit: "s", format: (value) => value.toFixed(3) },
  { name: "attention saved", format: formatPercent },
  { name: "exchange, if nothing hides it", format: formatPercent },
];
const FIELDS = ["sequences_per_pool", "skew", "step_seconds", "saved_share", "exchange_share"];

export class WhatifPanel extends Panel {
  static title = "What if";
  static about =
    "Predicted for each pool size from this job's own lengths and its measured cost model. 1 is no pooling: " +
    "placement alone.";

  build(body) {
    this.parts = element("div", { id: "whatif-parts" });
    body.append(this.parts);
  }

  emptySentence({ advice }) {
    return advice?.length ? null : "Waiting for steps that the cost model can price.";
  }

  draw({ advice }) {
    this.parts.replaceChildren(...advice.map((each) => this.part(each)));
  }

  part(advice) {
    const { meeting, reason, recommended, sizes, home_skew: home } = advice;
    const worst = Math.max(home, ...sizes.map(({ skew }) => skew));
    const rows = sizes.map((size) => this.row(size, recommended, worst));
    const heads = ["pool of", "", "predicted skew", "step", "saved"].map((name) =>
      name ? element("th", { scope: "col", class: "number" }, name) : element("td"),
    );
    const table = element(
      "table",
      { class: "whatif" },
      element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...rows),
    );
    const title = element("h3", {}, MEETINGS[meeting] ?? meeting);
    const box = scrollBox(`Pool sizes: ${title.textContent}`, table);
    return element("section", {}, title, element("p", { class: "reason" }, reason), box);
  }

  row(size, recommended, worst) {
    const chosen = size.sequences_per_pool === recommended;
    const bar = element("span", { class: "bar-of measured" });
    bar.style.width = `${Math.max(1, (100 * (size.skew - 1)) / Math.max(0.01, worst - 1))}%`;
    const name = element("th", { scope: "row", class: "number" }, size.sequences_per_pool);
    if (chosen) name.append(" ", element("span", { class: "chip" }, "recommended"));
    const track = element("span", { class: "track", "aria-hidden": "true" }, bar);
    return element(
      "tr",
      chosen ? { class: "chosen" } : {},
      name,
      element("td", { class: "wide-cell" }, track),
      numberCell(formatRatio(size.skew)),
      numberCell(formatSeconds(size.step_seconds)),
      numberCell(formatPercent(size.saved_share)),
    );
  }

  get sentence() {
    return this.store?.advice?.[0]?.reason ?? "";
  }

  table() {
    const advice = this.store?.advice ?? [];
    const rows = advice.flatMap(({ meeting, sizes }) =>
      sizes.map((size) => [MEETINGS[meeting] ?? meeting, ...FIELDS.map((name) => size[name])]),
    );
    return { columns: [{ name: "meeting" }, ...COLUMNS], rows };
  }
}

customElements.define("libra-whatif", WhatifPanel);
