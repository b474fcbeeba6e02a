// Predicted against measured seconds, both logarithmic; on the diagonal the model is right.

import { axis, Chart } from "./chart.js";
import { formatTick } from "./format.js";
import { colour } from "./palette.js";

export class ScatterChart extends Chart {
  constructor(container, { height, format, xLabel, yLabel }) {
    super(container, height);
    Object.assign(this, { format, xLabel, yLabel });
  }

  // pairs: [[x, y]]; a logarithm has no place for what is not positive.
  setPairs(pairs) {
    const shown = pairs.filter(([x, y]) => x > 0 && y > 0).sort((a, b) => a[0] - b[0]);
    if (shown.length === 0) return;
    const logs = shown.flat().map(Math.log10);
    const least = logs.reduce((a, b) => Math.min(a, b), Infinity);
    const most = logs.reduce((a, b) => Math.max(a, b), -Infinity);
    this.extent = [10 ** Math.floor(least), 10 ** Math.max(Math.ceil(most), Math.floor(least) + 1)];
    this.setData([shown.map(([x]) => x), shown.map(([, y]) => y)]);
  }

  options() {
    const splits = () => this.decades();
    const scale = () => ({ distr: 3, range: () => this.extent });
    const ink = { fill: colour("--measured-soft"), stroke: colour("--measured") };
    const dots = { show: true, size: 5, ...ink };
    return {
      scales: { x: { time: false, ...scale() }, y: scale() },
      series: [{}, { paths: () => null, points: dots }],
      axes: [
        axis(this.xLabel, formatTick(this.format), { size: 28, splits }),
        axis(this.yLabel, formatTick(this.format), { size: 60, splits }),
      ],
      cursor: { show: false },
      hooks: { drawClear: [(plot) => this.drawDiagonal(plot)] },
    };
  }

  // At most five labels an axis, whatever the span.
  decades() {
    const [from, to] = this.extent.map((value) => Math.round(Math.log10(value)));
    const stride = Math.ceil((to - from) / 4);
    const count = Math.floor((to - from) / stride) + 1;
    return Array.from({ length: count }, (_, i) => 10 ** (from + i * stride));
  }

  drawDiagonal(plot) {
    const { ctx } = plot;
    const [from, to] = this.extent;
    ctx.save();
    ctx.strokeStyle = colour("--predicted");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(plot.valToPos(from, "x", true), plot.valToPos(from, "y", true));
    ctx.lineTo(plot.valToPos(to, "x", true), plot.valToPos(to, "y", true));
    ctx.stroke();
    ctx.restore();
  }
}
