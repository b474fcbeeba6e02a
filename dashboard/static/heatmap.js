// Ranks by steps as colours: whole groups light up, or one rank does, and the shape is the cause.

import { byId, setState, setText, speakWhileFocused } from "./dom.js";
import { formatRatio } from "./format.js";
import { heatTable, NO_COLOUR, onSchemeChange } from "./palette.js";

const MIN_HEIGHT = 64;
const MAX_HEIGHT = 320;
const RANK_HEIGHT = 24;
const EVEN = 1;
// The scale follows the slowest rank in half steps; one broken rank must not darken the others.
const MIN_TOP = 1.5;
const MAX_TOP = 3;

// First item of each of `pools` equal shares of `items`.
function shares(items, pools) {
  return Array.from({ length: pools + 1 }, (_, i) => Math.floor((i * items) / pools));
}

export class HeatmapView {
  constructor() {
    this.section = byId("heatmap");
    this.canvas = byId("heat");
    this.marker = byId("heat-marker");
    this.readout = byId("heat-readout");
    this.rows = [];
    this.ranks = 0;
    this.cursor = null;
    speakWhileFocused(this.canvas, this.readout);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.moveTo(null));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    onSchemeChange(() => this.draw());
  }

  show(history) {
    this.rows = history.rows.filter((row) => row.slowdown);
    this.ranks = this.rows.reduce((most, row) => Math.max(most, row.slowdown.length), 0);
    if (this.cursor?.rank >= this.ranks) this.cursor = null;
    if (this.ranks === 0) {
      setState(this.section, "empty", "Waiting for the first step that all ranks reported.");
      return;
    }
    setState(this.section, "ready");
    const height = Math.min(MAX_HEIGHT, Math.max(MIN_HEIGHT, RANK_HEIGHT * this.ranks));
    this.canvas.style.height = `${height}px`;
    setText(byId("heat-first-step"), `step ${this.rows[0].step}`);
    setText(byId("heat-last-step"), `step ${this.rows.at(-1).step}`);
    setText(byId("heat-last-rank"), `rank ${this.ranks - 1}`);
    this.draw();
    this.describe();
  }

  // The picture has at most one pixel per screen pixel, so the browser never shrinks it, which
  // would average. What does not fit is pooled by its slowest: averaging would hide a straggler.
  draw() {
    const width = Math.floor(this.canvas.clientWidth * devicePixelRatio);
    const height = Math.floor(this.canvas.clientHeight * devicePixelRatio);
    if (!this.ranks || width === 0 || height === 0) return;
    this.columns = shares(this.rows.length, Math.min(this.rows.length, width));
    this.lines = shares(this.ranks, Math.min(this.ranks, height));
    const image = new ImageData(this.columns.length - 1, this.lines.length - 1);
    this.paint(new Uint32Array(image.data.buffer), image.width);
    this.canvas.width = image.width;
    this.canvas.height = image.height;
    this.canvas.getContext("2d").putImageData(image, 0, 0);
    this.placeMarker();
  }

  paint(pixels, width) {
    const table = heatTable();
    const worst = this.rows.map((row) => this.slowest(row).slowdown);
    const peak = worst.reduce((a, b) => Math.max(a, b), EVEN);
    const top = Math.min(MAX_TOP, Math.max(MIN_TOP, Math.ceil(2 * peak) / 2));
    this.showLegend(top, peak > top);
    for (let line = 0; line < this.lines.length - 1; line += 1) {
      for (let column = 0; column < width; column += 1) {
        const value = this.pooled(line, column);
        const at = Math.round(((value - EVEN) / (top - EVEN)) * (table.length - 1));
        const known = value > -Infinity;
        const entry = table[Math.min(table.length - 1, Math.max(0, at))];
        pixels[line * width + column] = known ? entry : NO_COLOUR;
      }
    }
  }

  pooled(line, column) {
    let most = -Infinity;
    for (let step = this.columns[column]; step < this.columns[column + 1]; step += 1) {
      const { slowdown } = this.rows[step];
      for (let rank = this.lines[line]; rank < this.lines[line + 1]; rank += 1) {
        if (slowdown[rank] > most) most = slowdown[rank];
      }
    }
    return most;
  }

  showLegend(top, above) {
    const values = [EVEN, (EVEN + top) / 2, top];
    ["heat-low", "heat-middle", "heat-high"].forEach((id, i) => {
      setText(byId(id), `${formatRatio(values[i])}${above && i === 2 ? " and more" : ""}`);
    });
  }

  slowest(row, from = 0, to = row.slowdown.length) {
    let rank = from;
    for (let i = from; i < to; i += 1) if (row.slowdown[i] > row.slowdown[rank]) rank = i;
    return { step: row.step, rank, slowdown: row.slowdown[rank] };
  }

  point(event) {
    if (!this.ranks) return;
    const box = this.canvas.getBoundingClientRect();
    const within = (position, size, count) =>
      Math.min(count - 1, Math.max(0, Math.floor((position / size) * count)));
    const column = within(event.clientX - box.left, box.width, this.columns.length - 1);
    const line = within(event.clientY - box.top, box.height, this.lines.length - 1);
    const candidates = this.rows
      .slice(this.columns[column], this.columns[column + 1])
      .map((row) => this.slowest(row, this.lines[line], this.lines[line + 1]));
    this.moveTo(candidates.reduce((a, b) => (b.slowdown > a.slowdown ? b : a)));
  }

  onKey(event) {
    const moves = {
      ArrowLeft: [-1, 0],
      ArrowRight: [1, 0],
      ArrowUp: [0, -1],
      ArrowDown: [0, 1],
      Home: [-Infinity, 0],
      End: [Infinity, 0],
    };
    if (event.key === "Escape") this.moveTo(null);
    const move = moves[event.key];
    if (!move || !this.ranks) return;
    event.preventDefault();
    const last = this.rows.length - 1;
    const start = this.cursor ?? this.slowest(this.rows[last]);
    const found = this.rows.findIndex((row) => row.step === start.step);
    const index = Math.min(last, Math.max(0, (found < 0 ? last : found) + move[0]));
    const rank = Math.min(this.ranks - 1, Math.max(0, start.rank + move[1]));
    this.moveTo({ step: this.rows[index].step, rank });
  }

  moveTo(cursor) {
    this.cursor = cursor;
    this.placeMarker();
    this.describe();
  }

  placeMarker() {
    const index = this.cursor ? this.rows.findIndex((row) => row.step === this.cursor.step) : -1;
    this.marker.hidden = index < 0;
    if (index < 0) return;
    const percent = (value, count) => `${(100 * value) / count}%`;
    this.marker.style.left = percent(index, this.rows.length);
    this.marker.style.top = percent(this.cursor.rank, this.ranks);
    this.marker.style.width = percent(1, this.rows.length);
    this.marker.style.height = percent(1, this.ranks);
  }

  describe() {
    const row = this.cursor && this.rows.find(({ step }) => step === this.cursor.step);
    if (row) {
      const slowdown = formatRatio(row.slowdown[this.cursor.rank]);
      setText(this.readout, `Step ${row.step}, rank ${this.cursor.rank}: ${slowdown} × the mean`);
      return;
    }
    const newest = this.rows.at(-1);
    if (!newest) return;
    const { rank, slowdown } = this.slowest(newest);
    const worst = `rank ${rank} at ${formatRatio(slowdown)} × the mean`;
    setText(this.readout, `Step ${newest.step}: slowest of ${this.ranks} is ${worst}`);
  }
}
