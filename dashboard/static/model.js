// How well the cost model fits: for each kind of kernel its points, coefficients and error.

import { LineChart } from "./chart.js";
import { element, scrollBox, setText } from "./dom.js";
import { formatCount, formatPercent, formatSeconds, UNKNOWN } from "./format.js";
import { Panel } from "./panel.js";
import { ScatterChart } from "./scatter.js";

const UNITS = {
  tiles: "tile",
  query_tokens: "query token",
  key_tokens: "key token",
  causal_pairs: "causal pair",
  query_blocks: "block of query tokens",
  long_query_tokens: "query token of a long tile",
};

function kindName(kind) {
  const heads = `head ${kind.head_dim}, ${kind.group_heads} heads a group`;
  return `${kind.device} · ${kind.backend} · ${kind.dtype} · ${heads}`;
}

// One kind of kernel, kept on the page so that its charts are updated and not built anew.
class KindCard {
  constructor(kind) {
    this.direction = kind.direction;
    this.error = element("p", { class: "readout" });
    this.body = element("tbody");
    this.plot = element("div", { class: "chart", role: "img" });
    this.course = element("div", { class: "chart", role: "img" });
    this.source = element("th", { scope: "col", class: "number" });
    const unit = element("th", { scope: "col" }, "cost of one");
    const interval = element("th", { scope: "col", class: "number" }, "95 % interval");
    const head = element("thead", {}, element("tr", {}, unit, this.source, interval));
    this.node = element(
      "article",
      {},
      element("h3", {}, kind.direction),
      element("p", { class: "note" }, kindName(kind)),
      this.error,
      this.plot,
      scrollBox(`Coefficients of the ${kind.direction} model`, element("table", {}, head, this.body)),
      this.course,
    );
    this.scatter = new ScatterChart(this.plot, {
      height: 260,
      format: formatSeconds,
      xLabel: "predicted seconds a call; on the line the model is right",
      yLabel: "measured",
    });
    this.errors = new LineChart(this.course, {
      height: 130,
      label: "error",
      format: formatPercent,
      series: [{ colour: "--predicted", width: 1.5 }],
      range: (_, highest) => [0, 1.1 * Math.max(0.01, highest ?? 0)],
    });
  }

  show(fit, features) {
    const { count, error, points, predicted, source } = fit;
    const off = error === null ? "not known yet" : formatPercent(error);
    const calls = formatCount(Math.round(count));
    setText(this.error, `Error on data not seen before: ${off}. ${calls} calls measured.`);
    // Before enough calls are measured the model is an assumption and must not pass for a fit.
    setText(this.source, source === "prior" ? "assumed" : "fitted");
    const shown = `${points.length} ${this.direction} calls`;
    this.plot.setAttribute("aria-label", `${shown}: predicted against measured seconds`);
    this.course.setAttribute("aria-label", `Error of the ${this.direction} model over steps, now ${off}`);
    this.scatter.setPairs(points.map((point, i) => [predicted[i], point.at(-1)]));
    if (fit.error_steps.length) this.errors.setData([fit.error_steps, fit.error_course]);
    this.body.replaceChildren(...features.map((feature, i) => this.row(feature, fit, i)));
  }

  row(feature, { coefficients, intervals }, i) {
    const between = intervals ? intervals[i].map(formatSeconds).join(" to ") : UNKNOWN;
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, UNITS[feature] ?? feature.replaceAll("_", " ")),
      element("td", { class: "number" }, formatSeconds(coefficients[i])),
      element("td", { class: "number" }, between),
    );
  }
}

export class ModelPanel extends Panel {
  static title = "Cost model";
  static about = "What a kernel call costs, fitted to what ranks measure. Each dot is one call.";
  static wide = true;

  build(body) {
    this.list = element("div", { class: "kinds", id: "model-kinds" });
    body.append(this.list);
    this.cards = new Map();
  }

  emptySentence({ model }) {
    return model?.kinds.length ? null : "No kernel call has been measured yet.";
  }

  draw({ model }) {
    for (const fit of model.kinds) this.card(fit.kind).show(fit, model.features);
  }

  card(kind) {
    const name = JSON.stringify(Object.entries(kind).sort());
    if (!this.cards.has(name)) {
      const card = new KindCard(kind);
      this.cards.set(name, card);
      this.list.append(card.node);
    }
    return this.cards.get(name);
  }

  get sentence() {
    const { kinds = [] } = this.store?.model ?? {};
    return kinds.map(({ kind, error }) => `${kind.direction}: error ${formatPercent(error)}`).join("; ");
  }

  table() {
    const { features = [], kinds = [] } = this.store?.model ?? {};
    const columns = [
      { name: "kernel" },
      { name: "direction" },
      { name: "cost of one" },
      { name: "fitted", unit: "s", format: (value) => value.toExponential(3) },
      { name: "low", unit: "s", format: (value) => value.toExponential(3) },
      { name: "high", unit: "s", format: (value) => value.toExponential(3) },
      { name: "error", format: formatPercent },
      { name: "calls", format: (value) => formatCount(Math.round(value)) },
    ];
    const rows = kinds.flatMap(({ kind, coefficients, intervals, error, count }) =>
      features.map((feature, i) => [
        kindName(kind), kind.direction, feature, coefficients[i],
        intervals?.[i][0] ?? null, intervals?.[i][1] ?? null, error, count,
      ]),
    );
    return { columns, rows };
  }
}

customElements.define("libra-model", ModelPanel);
