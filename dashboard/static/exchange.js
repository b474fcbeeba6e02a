// The exchange over steps: its exposed share of the step, and the bytes that all ranks sent.

import { LineChart } from "./chart.js";
import { byId, setState, setText, speakWhileFocused } from "./dom.js";
import { formatBytes, formatPercent, formatSeconds } from "./format.js";

const HEIGHT = 180;

export class ExchangeView {
  constructor() {
    this.section = byId("exchange");
    this.readout = byId("exchange-readout");
    this.history = null;
    const range = (_, highest) => [0, highest > 0 ? 1.1 * highest : 1];
    const onCursor = (index) => this.describe(index);
    this.share = new LineChart(byId("share-chart"), {
      height: HEIGHT,
      label: "share of step",
      format: formatPercent,
      series: [{ colour: "--measured", width: 2 }],
      range,
      onCursor,
    });
    this.bytes = new LineChart(byId("bytes-chart"), {
      height: HEIGHT,
      label: "bytes a step",
      format: formatBytes,
      series: [{ colour: "--measured", width: 2 }],
      range,
    });
    for (const id of ["share-chart", "bytes-chart"]) speakWhileFocused(byId(id), this.readout);
  }

  show(history) {
    this.history = history;
    if (history.length === 0) {
      setState(this.section, "empty", "Waiting for the first step that all ranks reported.");
      return;
    }
    setState(this.section, "ready");
    const steps = history.column("step");
    this.share.setData([steps, history.column("share")]);
    this.bytes.setData([steps, history.column("sent_bytes")]);
    this.describe(this.share.plot?.cursor.idx ?? null);
  }

  describe(index) {
    const row = index === null ? this.history?.last : this.history?.rows[index];
    if (!row) return;
    const figures = [
      `longest exposed wait ${formatSeconds(row.wait_seconds)}`,
      `at most ${formatPercent(row.share)} of a rank's step`,
      `${formatBytes(row.sent_bytes)} sent`,
    ];
    setText(this.readout, `Step ${row.step}: ${figures.join(", ")}`);
  }
}
