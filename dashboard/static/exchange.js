// What moving tiles costs: bytes on the wire, and the wait for them that computing does not hide.

import { LineChart } from "./chart.js";
import { chartBox, element, speakWhileFocused } from "./dom.js";
import { formatBytes, formatPercent, formatSeconds } from "./format.js";
import { column } from "./history.js";
import { Panel } from "./panel.js";

const CHARTS = [
  ["share", "Exposed exchange as a share of the step", "of the step", formatPercent, 1e-3],
  ["wait_seconds", "Exposed exchange in seconds", "waited", formatSeconds, 1e-6],
  ["sent_bytes", "Bytes exchanged in a step", "sent, all ranks", formatBytes, 1],
];

export class ExchangePanel extends Panel {
  static title = "Exchange";
  static about =
    "The wait that computing does not hide, on the rank that waits longest, and the bytes that all ranks send.";

  build(body) {
    this.readout = element("p", { class: "readout", id: "exchange-readout" });
    this.charts = CHARTS.map(([name, says, label, format, least]) => {
      const box = chartBox(`exchange-${name}`, says, "exchange-readout");
      body.append(box);
      speakWhileFocused(box, this.readout);
      return new LineChart(box, {
        height: 150,
        label,
        format,
        series: [{ colour: "--measured", width: 2 }],
        range: (_, highest) => [0, 1.1 * Math.max(least, highest ?? 0)],
        onCursor: (index) => this.describe(index),
      });
    });
    this.fits = element("p", { class: "note" });
    body.append(this.readout, this.fits);
  }

  emptySentence({ rows }) {
    const told = rows.some((row) => row.sent_bytes !== undefined);
    return told ? null : "Waiting for the first step that all ranks reported.";
  }

  draw({ rows, waveFits }) {
    this.rows = rows;
    CHARTS.forEach(([name], i) => {
      this.charts[i].setData([column(rows, "step"), column(rows, name)]);
    });
    this.fits.textContent = waveFits.map(fitText).join(" ");
    this.describe(null);
  }

  describe(index) {
    const row = index === null ? this.rows?.at(-1) : this.rows?.[index];
    if (!row) return;
    const wait = `${formatSeconds(row.wait_seconds)} exposed, ${formatPercent(row.share)} of the step`;
    this.say(`Step ${row.step}: ${formatBytes(row.sent_bytes)} sent, ${wait}`);
  }

  table() {
    const names = ["step", "sent_bytes", "wait_seconds", "share"];
    const columns = [
      { name: "step" },
      { name: "sent", unit: "bytes" },
      { name: "exposed wait", unit: "s", format: (value) => value.toFixed(6) },
      { name: "share of the step", format: formatPercent },
    ];
    const rows = (this.store?.rows ?? []).map((row) => names.map((name) => row[name] ?? null));
    return { columns, rows, newestLast: true };
  }
}

function fitText({ transport, source, coefficients, error }) {
  if (source === "prior") return `Waves over ${transport} are not measured yet.`;
  const one = (name) => name.replace(/s$/, "").replaceAll("_", " ");
  const each = Object.entries(coefficients).map(
    ([name, seconds]) => `${formatSeconds(seconds)} per ${one(name)}`,
  );
  const off = error === null ? "" : `, off by ${formatPercent(error)}`;
  return `A wave over ${transport} takes ${each.join(" and ")}${off}.`;
}

customElements.define("libra-exchange", ExchangePanel);
