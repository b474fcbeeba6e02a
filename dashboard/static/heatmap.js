// Ranks by steps as colours: whole groups light up, or one rank does, and the shape is the cause.

import { cursor } from "./cursor.js";
import { choice, element, setText, speakWhileFocused } from "./dom.js";
import { formatRatio } from "./format.js";
import { HeatPicture } from "./heat_picture.js";
import { heatPixels } from "./palette.js";
import { Panel } from "./panel.js";
import { rankFigures } from "./rank_figures.js";
import { orderRanks, ORDERS, placeText } from "./rank_order.js";
import { onSchemeChange } from "./theme.js";
import { view } from "./view.js";

const MIN_HEIGHT = 64;
const MAX_HEIGHT = 600;
const RANK_HEIGHT = 24;
// The scale follows the slowest rank in half steps; one broken rank must not darken the others.
const MIN_TOP = 1.5;
const MAX_TOP = 3;

export class HeatmapPanel extends Panel {
  static title = "Ranks by steps";
  static about =
    "Attention time of each rank over the mean of its step, which even ranks would all have. One bright " +
    "line is one slow rank; a bright group is uneven work.";
  static wide = true;

  build(body) {
    this.picture = new HeatPicture();
    this.cell = null;
    this.buildOrder();
    this.canvas = element("canvas", {
      id: "heat",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label":
        "Slowdown of each rank in each step; arrow keys move by step and by rank, Enter opens the rank, " +
        "Escape leaves",
      "aria-describedby": "heat-readout",
    });
    this.marker = element("div", { class: "marker", id: "heat-marker", hidden: "" });
    this.line = element("div", { class: "cursor-line", hidden: "" });
    this.readout = element("p", { class: "readout", id: "heat-readout" });
    this.buildFrame(body);
    speakWhileFocused(this.canvas, this.readout);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.moveTo(null));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("click", () => this.open());
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    onSchemeChange(() => { this.top = null; this.redraw(); });
    cursor.follow(this, (step) => this.follow(step));
  }

  buildOrder() {
    this.order = choice(ORDERS, { id: "heat-order" });
    this.order.addEventListener("change", () => {
      view.set({ order: this.order.value === "mesh" ? null : this.order.value });
      this.redraw();
    });
    this.actions.append(element("label", { class: "pick" }, "Rows ", this.order));
  }

  buildFrame(body) {
    this.ends = ["first", "last"].map((end) => element("span", { id: `heat-${end}-rank` }));
    this.steps = ["first", "last"].map((end) => element("span", { id: `heat-${end}-step` }));
    this.ticks = ["low", "middle", "high"].map((place) => element("span", { id: `heat-${place}` }));
    const scale = element(
      "span",
      { class: "scale" },
      element("span", { class: "ramp", "aria-hidden": "true" }),
      element("span", { class: "ticks" }, ...this.ticks),
    );
    body.append(
      element(
        "div",
        { class: "heat" },
        element("p", { class: "ranks" }, ...this.ends),
        element("div", { class: "picture" }, this.canvas, this.line, this.marker),
        element("p", { class: "steps" }, ...this.steps),
        element("p", { class: "legend" }, scale, element("span", {}, "× the mean")),
      ),
      this.readout,
    );
  }

  emptySentence({ matrix }) {
    if (matrix.length === 0) return "Waiting for the first step that all ranks reported.";
    const [from, to] = this.numbers(matrix);
    return from >= to ? "None of the newest steps lie in this window." : null;
  }

  // The matrix's numbers of the steps in the window, the last one excluded.
  numbers(matrix) {
    const { window } = view;
    let [from, to] = [matrix.first, matrix.next];
    if (!window) return [from, to];
    while (from < to && matrix.stepAt(from) < window.from) from += 1;
    while (to > from && matrix.stepAt(to - 1) > window.to) to -= 1;
    return [from, to];
  }

  draw(store) {
    const { matrix } = store;
    this.order.value = view.get("order") in ORDERS ? view.get("order") : "mesh";
    const height = Math.min(MAX_HEIGHT, Math.max(MIN_HEIGHT, RANK_HEIGHT * matrix.ranks));
    this.canvas.style.height = `${height}px`;
    const [from, to] = this.numbers(matrix);
    const shown = [view.get("from"), view.get("to")];
    const looks = [this.order.value, store.ranks.length, matrix.ranks, ...shown].join();
    const { picture } = this;
    const same = !store.redraw && looks === this.looks && picture.matrix === matrix;
    if (same && !view.window) {
      while (picture.to < to) picture.append();
    } else if (!same || picture.from !== from || picture.to !== to) {
      this.rebuild(matrix, from, to);
    }
    this.looks = looks;
    store.redraw = false;
    this.paint();
    this.label(matrix, from, to);
  }

  redraw() {
    this.looks = null;
    if (this.store) this.update(this.store);
  }

  // The picture has at most one pixel per screen pixel, so the browser never shrinks it, which
  // would average.
  rebuild(matrix, from, to) {
    const width = Math.floor(this.canvas.clientWidth * devicePixelRatio);
    const height = Math.floor(this.canvas.clientHeight * devicePixelRatio);
    const order = orderRanks(this.order.value, matrix, this.store.ranks, from, to);
    this.picture.build(matrix, order, from, to, width, height);
  }

  paint() {
    const { picture, canvas } = this;
    const { lines, columns, peak } = picture;
    if (!lines || !columns) return;
    const top = Math.min(MAX_TOP, Math.max(MIN_TOP, Math.ceil(peak / 500) / 2));
    if (top !== this.top) this.colours = heatPixels(top);
    this.top = top;
    if (!this.image || this.image.width !== columns || this.image.height !== lines) {
      this.image = new ImageData(columns, lines);
      canvas.width = columns;
      canvas.height = lines;
    }
    picture.paint(new Uint32Array(this.image.data.buffer), this.colours);
    canvas.getContext("2d").putImageData(this.image, 0, 0);
    this.showLegend(top, peak > 1000 * top);
  }

  label(matrix, from, to) {
    const { order } = this.picture;
    setText(this.ends[0], `rank ${order[0]}`);
    setText(this.ends[1], `rank ${order.at(-1)}`);
    setText(this.steps[0], `step ${matrix.stepAt(from)}`);
    setText(this.steps[1], `step ${matrix.stepAt(to - 1)}`);
    if (this.cell && matrix.find(this.cell.step) < 0) this.cell = null;
    this.placeMarker();
    this.describe();
  }

  showLegend(top, above) {
    [1, (1 + top) / 2, top].forEach((value, i) => {
      setText(this.ticks[i], `${formatRatio(value)}${above && i === 2 ? " and more" : ""}`);
    });
  }

  // The slowest cell below the pointer.
  point(event) {
    const { columns, lines } = this.picture;
    if (!columns) return;
    const box = this.canvas.getBoundingClientRect();
    const within = (position, size, count) =>
      Math.min(count - 1, Math.max(0, Math.floor((position / size) * count)));
    const column = within(event.clientX - box.left, box.width, columns);
    const line = within(event.clientY - box.top, box.height, lines);
    const { number, rank } = this.picture.slowestAt(column, line);
    this.moveTo({ step: this.picture.matrix.stepAt(number), rank });
  }

  onKey(event) {
    const moves = {
      ArrowLeft: [-1, 0],
      ArrowRight: [1, 0],
      ArrowUp: [0, -1],
      ArrowDown: [0, 1],
      PageUp: [0, -32],
      PageDown: [0, 32],
      Home: [-Infinity, 0],
      End: [Infinity, 0],
    };
    if (event.key === "Escape") this.moveTo(null);
    if (event.key === "Enter") this.open();
    const move = moves[event.key];
    if (!move || !this.picture.columns) return;
    event.preventDefault();
    const { matrix, order, from, to } = this.picture;
    const start = this.cell ?? this.newestSlowest();
    const number = Math.min(to - 1, Math.max(from, matrix.find(start.step) + move[0]));
    const place = order.indexOf(start.rank) + move[1];
    const rank = order[Math.min(order.length - 1, Math.max(0, place))];
    this.moveTo({ step: matrix.stepAt(number), rank });
  }

  newestSlowest() {
    const { matrix, to } = this.picture;
    const row = matrix.cells.subarray(matrix.offset(to - 1), matrix.offset(to - 1) + matrix.ranks);
    const rank = row.reduce((best, value, i) => (value > row[best] ? i : best), 0);
    return { step: matrix.stepAt(to - 1), rank };
  }

  moveTo(cell) {
    this.cell = cell;
    cursor.move(cell?.step ?? null, this);
    this.line.hidden = true;
    this.placeMarker();
    this.describe();
  }

  open() {
    if (this.cell) view.set({ rank: this.cell.rank });
  }

  // Another chart's cursor is a line across all ranks.
  follow(step) {
    const number = step === null || !this.picture.matrix ? -1 : this.picture.matrix.find(step);
    this.line.hidden = !this.isShown(number);
    if (!this.line.hidden) Object.assign(this.line.style, this.across(number));
  }

  isShown(number) {
    const { from, to } = this.picture;
    return number >= 0 && number >= from && number < to;
  }

  across(number) {
    const { origin, group, columns } = this.picture;
    const column = Math.floor((number - origin) / group);
    return { left: `${(100 * column) / columns}%`, width: `${100 / columns}%` };
  }

  placeMarker() {
    const { matrix, order } = this.picture;
    const number = this.cell && matrix ? matrix.find(this.cell.step) : -1;
    this.marker.hidden = !this.isShown(number);
    if (this.marker.hidden) return;
    const place = order.indexOf(this.cell.rank);
    Object.assign(this.marker.style, this.across(number), {
      top: `${(100 * place) / order.length}%`,
      height: `${100 / order.length}%`,
    });
  }

  describe() {
    const { matrix } = this.picture;
    if (!matrix?.length) return;
    const newest = this.newestSlowest();
    const { step, rank } = this.cell ?? newest;
    const slowdown = formatRatio(matrix.at(matrix.find(step), rank) / 1000);
    const place = placeText(this.store.ranks[rank]);
    const figure = `${slowdown} × the mean${place ? ` (${place})` : ""}`;
    if (this.cell) this.say(`Step ${step}, rank ${rank}: ${figure}`);
    else this.say(`Step ${step}: slowest of ${matrix.ranks} is rank ${rank} at ${figure}`);
  }

  table() {
    const { matrix, ranks } = this.store;
    return rankFigures(matrix, ranks, ...this.numbers(matrix));
  }
}

customElements.define("libra-heatmap", HeatmapPanel);
