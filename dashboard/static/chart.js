// The only module that knows the chart library: lines over steps, and predicted against measured.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { colour, onSchemeChange } from "./palette.js";
import { formatTick } from "./format.js";

const FONT = "12px system-ui, sans-serif";
const STEP_INCREMENTS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6];

function axis(label, format, more = {}) {
  return {
    label,
    font: FONT,
    labelFont: FONT,
    labelSize: 20,
    labelGap: 0,
    stroke: colour("--text-soft"),
    grid: { stroke: colour("--grid"), width: 1 },
    ticks: { show: false },
    values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))),
    ...more,
  };
}

class Chart {
  constructor(container, height) {
    this.container = container;
    this.height = height;
    this.data = null;
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(container);
    onSchemeChange(() => this.rebuild());
  }

  setData(data) {
    this.data = data;
    if (this.plot) this.plot.setData(data);
    else this.rebuild();
  }

  resize() {
    const width = this.container.clientWidth;
    if (!this.plot) this.rebuild();
    else if (width > 0 && width !== this.plot.width) {
      this.plot.setSize({ width, height: this.height });
    }
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    const width = this.container.clientWidth;
    if (!this.data || width === 0) return;
    const options = { ...this.options(), width, height: this.height, legend: { show: false } };
    this.plot = new uPlot(options, this.data, this.container);
  }
}

// Lines over steps. All line charts share one cursor, moved by pointer or by arrow keys.
export class LineChart extends Chart {
  // series: [{colour, width, dash}]; range: (lowest, highest) -> [from, to];
  // marks: () => [{step, label}]; onCursor: (index or null) => void.
  constructor(container, { height, label, format, series, range, marks, onCursor }) {
    super(container, height);
    Object.assign(this, { label, format, series, range, marks, onCursor });
    container.addEventListener("keydown", (event) => this.onKey(event));
  }

  options() {
    return {
      scales: { x: { time: false }, y: { range: (_, low, high) => this.range(low, high) } },
      series: [{}, ...this.series.map((line) => this.line(line))],
      axes: [
        axis("step", String, { incrs: STEP_INCREMENTS, size: 28 }),
        axis(this.label, formatTick(this.format), { size: 60 }),
      ],
      cursor: {
        sync: { key: "steps" },
        drag: { x: false, y: false },
        y: false,
        points: { size: 7 },
      },
      hooks: {
        draw: [(plot) => this.drawMarks(plot)],
        setCursor: [(plot) => this.onCursor?.(plot.cursor.idx ?? null)],
      },
    };
  }

  line({ colour: name, width, dash }) {
    const alone = (plot) => plot.data[0].length === 1;
    return { stroke: colour(name), width, dash, spanGaps: false, points: { show: alone, size: 5 } };
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const ratio = uPlot.pxRatio;
    ctx.save();
    ctx.strokeStyle = colour("--mark");
    ctx.fillStyle = colour("--text-soft");
    ctx.lineWidth = ratio;
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.setLineDash([2 * ratio, 3 * ratio]);
    let free = bbox.left;
    for (const { step, label } of this.marks?.() ?? []) {
      const x = Math.round(plot.valToPos(step, "x", true));
      if (x >= bbox.left && x <= bbox.left + bbox.width) free = this.drawMark(plot, x, label, free);
    }
    ctx.restore();
  }

  // Returns where the next label may begin: labels that would overlap are left out.
  drawMark({ ctx, bbox }, x, label, free) {
    const gap = 4 * uPlot.pxRatio;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const width = ctx.measureText(label).width + gap;
    const begin = Math.min(x + gap, bbox.left + bbox.width - width);
    if (begin < free) return free;
    ctx.fillText(label, begin, bbox.top + 3 * gap);
    return begin + width + gap;
  }

  onKey(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    const move = moves[event.key];
    if (move === undefined || !this.plot) return;
    event.preventDefault();
    const last = this.data[0].length - 1;
    const from = this.plot.cursor.idx ?? last;
    const index = Math.min(last, Math.max(0, from + move));
    this.plot.setCursor({ left: this.plot.valToPos(this.data[0][index], "x"), top: 0 });
  }
}

// Predicted against measured seconds, both logarithmic; on the diagonal the model is right.
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
    ctx.strokeStyle = colour("--mark");
    ctx.lineWidth = uPlot.pxRatio;
    ctx.beginPath();
    ctx.moveTo(plot.valToPos(from, "x", true), plot.valToPos(from, "y", true));
    ctx.lineTo(plot.valToPos(to, "x", true), plot.valToPos(to, "y", true));
    ctx.stroke();
    ctx.restore();
  }
}
