// How well the cost model fits: for each kind of kernel its points, coefficients and error.

import { ScatterChart } from "./chart.js";
import { byId, element, setState, setText } from "./dom.js";
import { formatCount, formatPercent, formatSeconds } from "./format.js";

const UNITS = {
  tiles: "tile",
  query_tokens: "query token",
  key_tokens: "key token",
  causal_pairs: "causal pair",
};

function kindName(kind) {
  const heads = `head ${kind.head_dim}, ${kind.group_heads} heads a group`;
  return `${kind.device} · ${kind.backend} · ${kind.dtype} · ${heads}`;
}

// One kind of kernel, kept on the page so that its chart is updated and not built anew.
class KindCard {
  constructor(kind) {
    this.error = element("p", { class: "readout" });
    this.body = element("tbody");
    this.plot = element("div", { class: "chart", role: "img" });
    const unit = element("th", { scope: "col" }, "cost of one");
    this.source = element("th", { scope: "col", class: "number" });
    const head = element("thead", {}, element("tr", {}, unit, this.source));
    this.node = element(
      "article",
      {},
      element("h3", {}, kind.direction),
      element("p", { class: "note" }, kindName(kind)),
      this.error,
      this.plot,
      element("table", {}, head, this.body),
    );
    this.direction = kind.direction;
    this.chart = new ScatterChart(this.plot, {
      height: 260,
      format: formatSeconds,
      xLabel: "predicted seconds a call",
      yLabel: "measured",
    });
  }

  show({ coefficients, count, error, points, predicted, source }, features) {
    const fit = error === null ? "not known yet" : formatPercent(error);
    const calls = formatCount(Math.round(count));
    setText(this.error, `Error on data not seen before: ${fit}. ${calls} calls measured.`);
    // Before enough calls are measured the model is an assumption and must not pass for a fit.
    setText(this.source, source === "prior" ? "assumed" : "fitted");
    const shown = `${points.length} ${this.direction} calls`;
    this.plot.setAttribute("aria-label", `${shown}: predicted against measured seconds`);
    this.chart.setPairs(points.map((point, i) => [predicted[i], point.at(-1)]));
    this.body.replaceChildren(
      ...features.map((feature, i) =>
        element(
          "tr",
          {},
          element("th", { scope: "row" }, UNITS[feature] ?? feature),
          element("td", { class: "number" }, formatSeconds(coefficients[i])),
        ),
      ),
    );
  }
}

export class ModelView {
  constructor() {
    this.section = byId("model");
    this.list = byId("model-kinds");
    this.cards = new Map();
  }

  show({ features, kinds }) {
    if (kinds.length === 0) {
      setState(this.section, "empty", "No kernel call has been measured yet.");
      return;
    }
    setState(this.section, "ready");
    for (const entry of kinds) this.card(entry.kind).show(entry, features);
  }

  card(kind) {
    const key = JSON.stringify(Object.entries(kind).sort());
    if (!this.cards.has(key)) {
      const card = new KindCard(kind);
      this.cards.set(key, card);
      this.list.append(card.node);
    }
    return this.cards.get(key);
  }
}
