// How well the cost model fits: for each kind of kernel its points, coefficients and error.

import { ScatterChart } from "./chart.js";
import { byId, element, setState, setText } from "./dom.js";
import { formatCount, formatPercent, formatSeconds } from "./format.js";

const UNITS = { tiles: "tile", query_tokens: "query token", key_tokens: "key token", causal_pairs: "causal pair" };

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
    const head = ["cost of one", "fitted"].map((text, i) =>
      element("th", { scope: "col", ...(i ? { class: "number" } : {}) }, text),
    );
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), this.body);
    const note = element("p", { class: "note" }, kindName(kind));
    this.node = element("article", {}, element("h3", {}, kind.direction), note, this.error, this.plot, table);
    this.direction = kind.direction;
    this.chart = new ScatterChart(this.plot, {
      height: 260,
      format: formatSeconds,
      xLabel: "predicted seconds a call",
      yLabel: "measured",
    });
  }

  show({ coefficients, count, error, points, predicted }, features) {
    const fit = error === null ? "not yet known" : formatPercent(error);
    setText(this.error, `Error on the next data ${fit}; ${formatCount(Math.round(count))} calls seen`);
    const name = `${this.direction}: ${points.length} kernel calls, predicted against measured seconds`;
    this.plot.setAttribute("aria-label", name);
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
