// What the heatmap shows, as numbers: slowdowns pooled to what the screen has pixels for.
//
// Rows and columns that share a pixel are pooled by their slowest: averaging would hide a straggler.
// Columns hold fixed groups of steps, so that a new step changes the last one or adds one.

// First item of each of `parts` equal shares of `items`.
export function shares(items, parts) {
  return Uint32Array.from({ length: parts + 1 }, (_, i) => Math.floor((i * items) / parts));
}

export class HeatPicture {
  constructor() {
    this.lines = 0;
    this.columns = 0;
    this.peak = 0;
  }

  // order: ranks in the order of rows; from, to: numbers of the matrix's steps, `to` excluded.
  build(matrix, order, from, to, width, height) {
    this.matrix = matrix;
    this.order = order;
    this.group = Math.max(1, Math.ceil((to - from) / Math.max(1, width)));
    this.lines = Math.min(order.length, Math.max(1, height));
    this.starts = shares(order.length, this.lines);
    this.origin = from - (from % this.group);
    this.from = from;
    this.to = from;
    this.peak = 0;
    this.columns = 0;
    this.pooled = new Uint16Array(this.lines * (Math.ceil((to - this.origin) / this.group) + 1));
    while (this.to < to) this.addStep();
  }

  // Follow the matrix by one step; the oldest column goes once none of its steps is kept.
  append() {
    this.addStep();
    while (this.matrix.first >= this.origin + this.group) this.dropColumn();
    this.from = Math.max(this.from, this.matrix.first);
  }

  addStep() {
    const column = Math.floor((this.to - this.origin) / this.group);
    if (column >= this.columns) {
      this.columns = column + 1;
      this.reserve();
      this.pooled.fill(0, column * this.lines, (column + 1) * this.lines);
    }
    this.pool(this.to, column * this.lines);
    this.to += 1;
  }

  pool(number, place) {
    const { pooled, order, starts, lines } = this;
    const { cells } = this.matrix;
    const row = this.matrix.offset(number);
    let peak = this.peak;
    for (let line = 0; line < lines; line += 1) {
      let most = pooled[place + line];
      for (let at = starts[line]; at < starts[line + 1]; at += 1) {
        const value = cells[row + order[at]];
        if (value > most) most = value;
      }
      pooled[place + line] = most;
      if (most > peak) peak = most;
    }
    this.peak = peak;
  }

  dropColumn() {
    this.pooled.copyWithin(0, this.lines, this.columns * this.lines);
    this.columns -= 1;
    this.origin += this.group;
  }

  reserve() {
    const needed = this.columns * this.lines;
    if (needed <= this.pooled.length) return;
    const larger = new Uint16Array(needed + this.lines);
    larger.set(this.pooled);
    this.pooled = larger;
  }

  // Fill 32-bit pixels, row by row, from the pixel of every slowdown.
  paint(pixels, table) {
    const { pooled, lines, columns } = this;
    for (let column = 0; column < columns; column += 1) {
      const place = column * lines;
      for (let line = 0; line < lines; line += 1) {
        pixels[line * columns + column] = table[pooled[place + line]];
      }
    }
  }

  // The numbers of the steps of a column, the last one excluded.
  stepsOf(column) {
    const begin = this.origin + column * this.group;
    return [Math.max(this.from, begin), Math.min(this.to, begin + this.group)];
  }

  // The slowest of the cells that share a pixel.
  slowestAt(column, line) {
    const [begin, end] = this.stepsOf(column);
    let best = { number: begin, rank: this.order[this.starts[line]], value: -1 };
    for (let number = begin; number < end; number += 1) {
      for (let at = this.starts[line]; at < this.starts[line + 1]; at += 1) {
        const value = this.matrix.at(number, this.order[at]);
        if (value > best.value) best = { number, rank: this.order[at], value };
      }
    }
    return best;
  }
}
