// Two jobs beside each other, or two stretches of one: what differs, and by how much.

import { ApiError, fetchJobs, JobApi } from "./api.js";
import { LineChart } from "./chart.js";
import { compareMedians, parseStretch, rowsOf, stretchStats, stretchText } from "./compare_stats.js";
import { chartBox, element, key, numberCell, numberHead, scrollBox, setText } from "./dom.js";
import { exportMenu } from "./export.js";
import { formatPercent, formatRatio, formatSeconds, UNKNOWN } from "./format.js";
import { showContent, showNotice } from "./notice.js";
import { cellText } from "./table.js";
import { view } from "./view.js";

const ABOUT = "Two jobs, or two stretches of one. Steps are counted from the first of each.";
const CAPACITY = 600;
const LINES = [
  { colour: "--measured", width: 2 },
  { colour: "--predicted", width: 2, dash: [6, 4] },
];
const SIDES = ["a", "b"];
const FIGURES = [
  ["steps", "steps", String],
  ["first", "from step", String],
  ["last", "to step", String],
  ["skew", "median skew", formatRatio],
  ["worst", "skew that 1 of 20 exceeds", formatRatio],
  ["home", "median skew of plain Ulysses", formatRatio],
  ["seconds", "median step time", formatSeconds],
  ["policies", "policies", String],
];

export class ComparePage {
  static title = "Compare";

  constructor(header) {
    this.header = header;
    this.id = "compare";
    this.rows = { a: [], b: [] };
    this.summaries = {};
  }

  get title() {
    return "Compare";
  }

  stretch(side) {
    return parseStretch(view.get(side) ?? view.get("a"));
  }

  async open(content) {
    this.build(content);
    view.addEventListener("change", () => this.refresh().catch(reportError));
    await this.refresh();
  }

  pause() {}

  resume() {}

  build(content) {
    this.pickers = Object.fromEntries(SIDES.map((side) => [side, this.picker(side)]));
    this.verdict = element("p", { class: "diagnosis", id: "compare-verdict" });
    this.body = element("tbody", { id: "compare-rows" });
    this.names = Object.fromEntries(SIDES.map((side) => [side, numberHead("")]));
    const names = SIDES.map((side) => this.names[side]);
    const heads = element("tr", {}, element("td"), ...names, numberHead("difference"));
    const table = element("table", {}, element("thead", {}, heads), this.body);
    const boxes = Object.entries({ skew: "Skew", seconds: "Step time" }).map(([name, what]) =>
      chartBox(`compare-${name}`, `${what} of both, by steps from the first`),
    );
    const actions = element("div", { class: "actions" }, exportMenu(this));
    content.replaceChildren(
      element(
        "section",
        { class: "panel wide", id: "compare", "aria-labelledby": "compare-title" },
        element("div", { class: "title" }, element("h2", { id: "compare-title" }, "Compare"), actions),
        element("p", { class: "about" }, ABOUT),
        element("div", { class: "pickers" }, ...SIDES.map((side) => this.pickers[side].node)),
        this.verdict,
        scrollBox("Figures of both", table),
        key({ measured: "A", predicted: "B" }),
        ...boxes,
      ),
    );
    const chart = (box, label, format, range) =>
      new LineChart(box, { height: 240, label, format, range, series: LINES });
    const skewRange = (_, high) => [1, 1 + 1.08 * Math.max(0.1, (high ?? 1) - 1)];
    this.charts = {
      skew: chart(boxes[0], "slowest ÷ mean rank", formatRatio, skewRange),
      seconds: chart(boxes[1], "step time", formatSeconds, (_, high) => [0, 1.08 * (high || 1)]),
    };
  }

  picker(side) {
    const name = side.toUpperCase();
    const job = element("select", { id: `compare-${side}-job`, "aria-label": `Job ${name}` });
    const [from, to] = ["from", "to"].map((end) =>
      element("input", {
        type: "number",
        min: "0",
        id: `compare-${side}-${end}`,
        "aria-label": `${name}: ${end} step`,
        placeholder: end === "from" ? "first" : "last",
      }),
    );
    const apply = () => {
      const bounds = [from, to].map(({ value }) => (value === "" ? null : Number(value)));
      const steps = bounds.includes(null) ? null : { from: bounds[0], to: bounds[1] };
      view.set({ [side]: stretchText({ job: job.value, steps }) });
    };
    const show = element("button", { type: "submit" }, "Show");
    const parts = [element("strong", {}, name), job, "steps", from, "to", to, show];
    const form = element("form", { class: "window" }, ...parts);
    form.addEventListener("submit", (event) => { event.preventDefault(); apply(); });
    job.addEventListener("change", () => { from.value = ""; to.value = ""; apply(); });
    return { node: form, job, from, to };
  }

  async refresh() {
    try {
      const jobs = (await fetchJobs()).map(({ job }) => job);
      await Promise.all(SIDES.map((side) => this.fetch(side, jobs)));
      showContent();
      this.draw();
      this.header.showConnection("polling");
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      showNotice("These cannot be compared", `${error.message}.`);
    }
  }

  async fetch(side, jobs) {
    const stretch = this.stretch(side);
    const { job, from, to } = this.pickers[side];
    const names = jobs.includes(stretch.job) ? jobs : [stretch.job, ...jobs];
    if (job.dataset.names !== names.join()) {
      job.dataset.names = names.join();
      job.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    }
    const edited = [job, from, to].includes(document.activeElement);
    if (!edited) {
      job.value = stretch.job;
      from.value = stretch.steps?.from ?? "";
      to.value = stretch.steps?.to ?? "";
    }
    const api = new JobApi(stretch.job);
    const [skew, summary] = await Promise.all([api.steps("skew", CAPACITY), api.summary()]);
    this.rows[side] = rowsOf(skew, stretch.steps);
    this.summaries[side] = summary;
  }

  draw() {
    const stats = Object.fromEntries(SIDES.map((side) => [side, stretchStats(this.rows[side])]));
    for (const side of SIDES) {
      setText(this.names[side], `${side.toUpperCase()}: ${stretchText(this.stretch(side))}`);
    }
    this.body.replaceChildren(...FIGURES.map((figure) => this.row(stats, ...figure)));
    setText(this.verdict, this.verdictText());
    this.drawChart("skew");
    this.drawChart("seconds");
    const names = SIDES.map((side) => stretchText(this.stretch(side)));
    document.title = `${names.join(" and ")} · Libra`;
  }

  row(stats, name, label, format) {
    const cells = SIDES.map((side) => numberCell(cellText(stats[side][name], { format })));
    const [a, b] = SIDES.map((side) => stats[side][name]);
    const differs = ["skew", "worst", "home", "seconds"].includes(name) && a && b;
    const change = differs ? signed(b / a - 1) : "";
    return element("tr", {}, element("th", { scope: "row" }, label), ...cells, numberCell(change));
  }

  verdictText() {
    const [a, b] = SIDES.map((side) => this.rows[side]);
    const says = ["seconds", "skew"].map((name) => {
      const found = compareMedians(a.map((row) => row[name]), b.map((row) => row[name]));
      if (!found) return null;
      const { ratio, low, high } = found;
      const what = name === "seconds" ? "Steps" : "skew";
      const between = `${signed(low - 1)} to ${signed(high - 1)}`;
      if (low <= 1 && high >= 1) return `${what} about the same (95 %: ${between})`;
      const [less, more] = name === "seconds" ? ["faster", "slower"] : ["lower", "higher"];
      const by = formatPercent(Math.abs(ratio - 1));
      return `${what} ${ratio < 1 ? less : more} in B by ${by} (95 %: ${between})`;
    });
    const told = says.filter(Boolean);
    return told.length ? `${told.join("; ")}.` : "Too few steps to compare.";
  }

  drawChart(name) {
    const [a, b] = SIDES.map((side) => this.rows[side].map((row) => row[name] ?? null));
    const length = Math.max(a.length, b.length);
    const pad = (values) => Array.from({ length }, (_, i) => values[i] ?? null);
    this.charts[name].setData([Array.from({ length }, (_, i) => i), pad(a), pad(b)]);
  }

  canvases() {
    return [...document.querySelectorAll("#compare canvas")];
  }

  table() {
    const names = ["step", "skew", "home", "seconds", "policy"];
    const columns = ["side", "job", ...names].map((name) => ({ name }));
    const rows = SIDES.flatMap((side) => {
      const { job } = this.stretch(side);
      return this.rows[side].map((row) => [side.toUpperCase(), job, ...names.map((name) => row[name])]);
    });
    return { columns, rows };
  }
}

function signed(share) {
  if (typeof share !== "number" || !Number.isFinite(share)) return UNKNOWN;
  return `${share > 0 ? "+" : ""}${formatPercent(share)}`;
}
