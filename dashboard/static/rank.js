// One rank, opened from the heatmap or the table: its host, its speed, and what its work explains.

import { LineChart } from "./chart.js";
import { button, chartBox, element, key, setText } from "./dom.js";
import { formatRatio, formatSeconds } from "./format.js";
import { Panel } from "./panel.js";
import { placeText } from "./rank_order.js";
import { view } from "./view.js";

function around(low, high, least) {
  const [from, to] = [Math.min(low ?? 1, 1 - least), Math.max(high ?? 1, 1 + least)];
  const gap = 0.06 * (to - from);
  return [from - gap, to + gap];
}

export class RankPanel extends Panel {
  static title = "Rank";
  static about =
    "Slowdown is this rank's attention time over the mean; pace is what of it its own work does not " +
    "explain: above 1 the rank itself is slow.";
  static wide = true;

  build(body) {
    this.place = element("p", { class: "large", id: "rank-place" });
    const course = chartBox("rank-course", "Slowdown and pace of the rank", "rank-readout");
    const seconds = chartBox("rank-seconds", "Measured and predicted seconds", "rank-readout");
    this.readout = element("p", { class: "readout", id: "rank-readout" });
    this.actions.append(button("Close rank", () => view.set({ rank: null }), { id: "rank-close" }));
    const pair = element(
      "div",
      { class: "pair" },
      element("div", {}, key({ measured: "slowdown", predicted: "pace, newest steps" }), course),
      element("div", {}, key({ measured: "measured", predicted: "predicted, newest steps" }), seconds),
    );
    body.append(this.place, pair, this.readout);
    const describe = (index) => this.describe(index);
    const lines = [
      { colour: "--measured", width: 2 },
      { colour: "--predicted", width: 1.5, dash: [6, 4] },
    ];
    this.course = new LineChart(course, {
      height: 220,
      label: "× the usual",
      format: formatRatio,
      series: lines,
      range: (low, high) => around(low, high, 0.1),
      onCursor: describe,
    });
    this.seconds = new LineChart(seconds, {
      height: 220,
      label: "attention a step",
      format: formatSeconds,
      series: lines,
      range: (_, high) => [0, 1.08 * (high || 1)],
      onCursor: describe,
    });
  }

  update(store) {
    this.hidden = view.number("rank") === null;
    if (this.hidden) return;
    super.update(store);
  }

  emptySentence({ rank }) {
    return rank ? null : "Asking for this rank.";
  }

  draw({ rank }) {
    this.rank = rank;
    setText(this.heading, `Rank ${rank.rank}`);
    const doubt = rank.doubt ? `; not believed: ${rank.doubt}` : "";
    const judged = `judged by ${rank.speed_steps} steps`;
    const speed = `runs at ${formatRatio(rank.speed)} of the usual speed, ${judged}`;
    setText(this.place, `${placeText(rank)}: ${speed}${doubt}`);
    this.rows = this.shown(rank);
    const pick = (name) => this.rows.map((at) => rank[name][at]);
    this.course.setData([pick("steps"), pick("slowdown"), pick("pace")]);
    this.seconds.setData([pick("steps"), pick("measured_seconds"), pick("predicted_by_step")]);
    this.describe(null);
  }

  shown({ steps }) {
    const { window } = view;
    const all = steps.map((_, at) => at);
    return window ? all.filter((at) => steps[at] >= window.from && steps[at] <= window.to) : all;
  }

  describe(index) {
    const at = index === null ? this.rows?.at(-1) : this.rows?.[index];
    if (at === undefined) return;
    const { rank } = this;
    const figures = [
      `${formatRatio(rank.slowdown[at])} × the mean`,
      `pace ${formatRatio(rank.pace[at])}`,
      `measured ${formatSeconds(rank.measured_seconds[at])}`,
      `predicted ${formatSeconds(rank.predicted_by_step[at])}`,
    ];
    const silent = rank.missing[at] ? ", silent: a typical rank's figures stand for it" : "";
    this.say(`Step ${rank.steps[at]}: ${figures.join(", ")}${silent}`);
  }

  table() {
    const names = ["steps", "slowdown", "pace", "measured_seconds", "predicted_by_step"];
    const columns = [
      { name: "step" },
      { name: "slowdown", format: formatRatio },
      { name: "pace", format: formatRatio },
      { name: "measured", unit: "s", format: (value) => value.toFixed(6) },
      { name: "predicted", unit: "s", format: (value) => value.toFixed(6) },
    ];
    const { rank } = this.store;
    const rows = rank ? this.shown(rank).map((at) => names.map((name) => rank[name][at])) : [];
    return { columns, rows, newestLast: true };
  }
}

customElements.define("libra-rank", RankPanel);
