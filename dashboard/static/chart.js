// The only module that knows the chart library: lines over steps, and predicted against measured.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { cursor } from "./cursor.js";
import { formatTick } from "./format.js";
import { colour } from "./palette.js";
import { onSchemeChange } from "./theme.js";

const FONT = "12px system-ui, sans-serif";
const STEP_INCREMENTS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6];
const LEAST_BRUSH_PX = 8;

export function axis(label, format, more = {}) {
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

export class Chart {
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

// Lines over steps. All of them share one cursor, moved by pointer or by arrow keys.
export class LineChart extends Chart {
  // series: [{colour, width, dash}]; range: (lowest, highest) -> [from, to];
  // marks: () => [{step, label}]; onCursor: (index or null) => void; onBrush: (from, to) => void.
  constructor(container, { height, label, format, series, range, marks, onCursor, onBrush }) {
    super(container, height);
    Object.assign(this, { label, format, series, range, marks, onCursor, onBrush });
    this.follows = false;
    container.addEventListener("keydown", (event) => this.onKey(event));
    cursor.follow(this, (step) => this.moveTo(step));
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
        drag: { x: Boolean(this.onBrush), y: false, setScale: false, dist: LEAST_BRUSH_PX },
        y: false,
        points: { size: 7 },
      },
      hooks: {
        draw: [(plot) => this.drawMarks(plot)],
        setCursor: [(plot) => this.cursorMoved(plot.cursor.idx ?? null)],
        setSelect: [(plot) => this.brushed(plot)],
      },
    };
  }

  line({ colour: name, width, dash }) {
    const alone = (plot) => plot.data[0].length === 1;
    return { stroke: colour(name), width, dash, spanGaps: false, points: { show: alone, size: 5 } };
  }

  cursorMoved(index) {
    this.onCursor?.(index);
    if (!this.follows) cursor.move(index === null ? null : this.data[0][index], this);
  }

  // Somebody else moved the cursor: no answer to that.
  moveTo(step) {
    if (!this.plot) return;
    this.follows = true;
    const left = step === null ? -10 : this.plot.valToPos(step, "x");
    this.plot.setCursor({ left, top: 0 });
    this.follows = false;
  }

  brushed(plot) {
    const { left, width } = plot.select;
    if (width < LEAST_BRUSH_PX || !this.onBrush) return;
    const ends = [left, left + width].map((position) => plot.posToVal(position, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.onBrush(Math.max(0, Math.ceil(ends[0])), Math.floor(ends[1]));
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
    if (event.key === "Escape") cursor.move(null, null);
    if (move === undefined || !this.plot) return;
    event.preventDefault();
    const last = this.data[0].length - 1;
    const from = this.plot.cursor.idx ?? last;
    const index = Math.min(last, Math.max(0, from + move));
    this.plot.setCursor({ left: this.plot.valToPos(this.data[0][index], "x"), top: 0 });
  }
}
