// Skew over steps: as measured, as the model predicts, and as plain Ulysses would have been.

import { LineChart } from "./chart.js";
import { chartBox, element, key, speakWhileFocused } from "./dom.js";
import { formatRatio, formatSeconds } from "./format.js";
import { column } from "./history.js";
import { Panel } from "./panel.js";
import { view } from "./view.js";

// Even is 1, and a line there must not hide behind the axis. A floor under the span keeps noise of
// a percent from filling the chart.
function skewRange(highest) {
  const span = Math.max(0.1, highest - 1);
  return [1 - 0.03 * span, 1 + 1.08 * span];
}

export class SkewPanel extends Panel {
  static title = "Skew over steps";
  static about =
    "Attention time of the slowest rank over that of the mean rank; 1 is even. Drag across steps to zoom.";
  static wide = true;

  build(body) {
    this.plot = chartBox("skew-chart", "Skew over steps", "skew-readout");
    this.readout = element("p", { class: "readout", id: "skew-readout" });
    const lines = {
      measured: "measured",
      predicted: "predicted by the model",
      home: "plain Ulysses, by the model",
    };
    body.append(key(lines), this.plot, this.readout);
    speakWhileFocused(this.plot, this.readout);
    this.chart = new LineChart(this.plot, {
      height: 280,
      label: "slowest ÷ mean rank",
      format: formatRatio,
      series: [
        { colour: "--home", width: 1.25 },
        { colour: "--measured", width: 2.5 },
        { colour: "--predicted", width: 1.5, dash: [6, 4] },
      ],
      range: (_, highest) => skewRange(highest ?? 1),
      marks: () => this.store?.marks() ?? [],
      onCursor: (index) => this.describe(index),
      onBrush: (from, to) => { view.window = { from, to }; },
    });
  }

  emptySentence({ history, rows }) {
    if (history.length === 0) return "Waiting for the first step that all ranks reported.";
    return rows.length === 0 ? "None of the newest steps lie in this window." : null;
  }

  draw({ rows }) {
    this.rows = rows;
    const columns = ["home_skew", "skew", "predicted_skew"].map((name) => column(rows, name));
    this.chart.setData([column(rows, "step"), ...columns]);
    this.describe(this.chart.plot?.cursor.idx ?? null);
  }

  describe(index) {
    const row = index === null ? this.rows?.at(-1) : this.rows?.[index];
    if (!row) return;
    const figures = [
      `measured ${formatRatio(row.skew)}`,
      `predicted ${formatRatio(row.predicted_skew)}`,
      `plain Ulysses ${formatRatio(row.home_skew)}`,
      `step took ${formatSeconds(row.step_seconds)}`,
      `policy ${row.policy_version}`,
    ];
    this.say(`Step ${row.step}: ${figures.join(", ")}`);
  }

  table() {
    const names = ["step", "skew", "predicted_skew", "home_skew", "step_seconds", "policy_version"];
    const columns = [
      { name: "step" },
      { name: "skew", unit: "slowest ÷ mean", format: formatRatio },
      { name: "predicted skew", format: formatRatio },
      { name: "plain Ulysses skew", format: formatRatio },
      { name: "step time", unit: "s", format: (value) => value.toFixed(3) },
      { name: "policy" },
    ];
    const rows = (this.store?.rows ?? []).map((row) => names.map((name) => row[name] ?? null));
    return { columns, rows, newestLast: true };
  }
}

customElements.define("libra-skew", SkewPanel);
