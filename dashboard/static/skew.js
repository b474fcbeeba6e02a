// Skew over steps: as measured, as the model predicts, and as plain Ulysses would have been.

import { LineChart } from "./chart.js";
import { byId, setState, setText, speakWhileFocused } from "./dom.js";
import { formatRatio, formatSeconds } from "./format.js";

// Even is 1, and a line there must not hide behind the axis. A floor under the span keeps noise of
// a percent from filling the chart.
function skewRange(highest) {
  const span = Math.max(0.1, highest - 1);
  return [1 - 0.03 * span, 1 + 1.08 * span];
}

export class SkewView {
  constructor() {
    this.section = byId("skew");
    this.readout = byId("skew-readout");
    this.history = null;
    this.policies = [];
    const plot = byId("skew-chart");
    speakWhileFocused(plot, this.readout);
    this.chart = new LineChart(plot, {
      height: 280,
      label: "slowest ÷ mean rank",
      format: formatRatio,
      series: [
        { colour: "--home", width: 1.25 },
        { colour: "--measured", width: 2.5 },
        { colour: "--predicted", width: 1.5, dash: [6, 4] },
      ],
      range: (_, highest) => skewRange(highest ?? 1),
      marks: () => this.marks(),
      onCursor: (index) => this.describe(index),
    });
  }

  marks() {
    return this.policies
      .filter((policy) => policy.first_step !== null && policy.version > 0)
      .map((policy) => ({ step: policy.first_step, label: `policy ${policy.version}` }));
  }

  show(history, policies) {
    this.history = history;
    this.policies = policies;
    if (history.length === 0) {
      setState(this.section, "empty", "Waiting for the first step that all ranks reported.");
      return;
    }
    setState(this.section, "ready");
    const columns = ["home_skew", "skew", "predicted_skew"].map((name) => history.column(name));
    this.chart.setData([history.column("step"), ...columns]);
    this.describe(this.chart.plot?.cursor.idx ?? null);
  }

  describe(index) {
    const row = index === null ? this.history?.last : this.history?.rows[index];
    if (!row) return;
    const figures = [
      `measured ${formatRatio(row.skew)}`,
      `predicted ${formatRatio(row.predicted_skew)}`,
      `plain Ulysses ${formatRatio(row.home_skew)}`,
      `step took ${formatSeconds(row.step_seconds)}`,
      `policy ${row.policy_version}`,
    ];
    setText(this.readout, `Step ${row.step}: ${figures.join(", ")}`);
  }
}
