// Slowdowns of all ranks in the newest steps, in thousandths: a ring that never grows.

const CELLS = 1 << 22;
const MOST_STEPS = 600;
const HEAD_BYTES = 16;
const MAGIC = 0x3144534c; // "LSD1", little-endian

export class Matrix {
  constructor() {
    this.clear();
  }

  clear() {
    this.ranks = 0;
    this.capacity = 0;
    this.cells = new Uint16Array(0);
    this.steps = new Float64Array(0);
    // Of all steps that ever came in, the number of the oldest kept and of the next one.
    this.first = 0;
    this.next = 0;
  }

  get length() {
    return this.next - this.first;
  }

  get lastStep() {
    return this.length ? this.stepAt(this.next - 1) : null;
  }

  stepAt(number) {
    return this.steps[number % this.capacity];
  }

  // Where the row of a step begins in `cells`.
  offset(number) {
    return (number % this.capacity) * this.ranks;
  }

  at(number, rank) {
    return this.cells[this.offset(number) + rank];
  }

  // The number of a step; -1 if it is not here. Steps grow, so halving finds it.
  find(step) {
    let [low, high] = [this.first, this.next];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.stepAt(middle) < step) low = middle + 1;
      else high = middle;
    }
    return low < this.next && this.stepAt(low) === step ? low : -1;
  }

  // Returns "appended", "replaced", or "reset" where what was here before is gone.
  put(step, row) {
    if (row.length !== this.ranks) {
      this.begin(row.length);
      this.append(step, row);
      return "reset";
    }
    if (this.length === 0 || step > this.lastStep) {
      this.append(step, row);
      return "appended";
    }
    const number = this.find(step);
    if (number >= 0) {
      this.cells.set(row, this.offset(number));
      return "replaced";
    }
    // A step of an attempt that went back: what lay ahead of it is done again.
    while (this.length && this.lastStep > step) this.next -= 1;
    this.append(step, row);
    return "reset";
  }

  begin(ranks) {
    this.clear();
    this.ranks = ranks;
    this.capacity = Math.min(MOST_STEPS, Math.max(1, Math.floor(CELLS / Math.max(1, ranks))));
    this.cells = new Uint16Array(this.capacity * ranks);
    this.steps = new Float64Array(this.capacity);
  }

  append(step, row) {
    if (this.length === this.capacity) this.first += 1;
    this.steps[this.next % this.capacity] = step;
    this.cells.set(row, this.offset(this.next));
    this.next += 1;
  }

  // Take in the balancer's answer of many steps; true if the picture has to be drawn anew.
  merge(buffer) {
    const { steps, ranks, rows } = decode(buffer);
    let anew = false;
    steps.forEach((step, i) => {
      anew = this.put(step, rows.subarray(i * ranks, (i + 1) * ranks)) !== "appended" || anew;
    });
    return anew;
  }
}

export function decode(buffer) {
  const head = new DataView(buffer, 0, HEAD_BYTES);
  if (head.getUint32(0, true) !== MAGIC) throw new TypeError("these are no slowdowns");
  const [count, ranks] = [head.getUint32(4, true), head.getUint32(8, true)];
  const steps = new Float64Array(buffer, HEAD_BYTES, count);
  const rows = new Uint16Array(buffer, HEAD_BYTES + 8 * count, count * ranks);
  return { steps, ranks, rows };
}

// An event carries its step's slowdowns as 16-bit integers, little-endian, in base64.
export function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  return new Uint16Array(bytes.buffer);
}
