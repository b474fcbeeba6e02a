// The newest steps of the job, merged from the views and from the live events, keyed by step.

export const CAPACITY = 600;

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.rows = [];
  }

  get length() {
    return this.rows.length;
  }

  get last() {
    return this.rows.at(-1) ?? null;
  }

  // view: {steps: [...], <name>: [one value a step], ...}; other shapes in it are passed over.
  mergeView(view) {
    const isColumn = (values) => Array.isArray(values) && values.length === view.steps.length;
    const columns = Object.entries(view).filter(
      ([name, values]) => name !== "steps" && isColumn(values),
    );
    const known = new Map(this.rows.map((row) => [row.step, row]));
    view.steps.forEach((step, i) => {
      const row = Object.fromEntries(columns.map(([name, values]) => [name, values[i]]));
      known.set(step, { ...known.get(step), ...row, step });
    });
    this.rows = [...known.values()].sort((a, b) => a.step - b.step).slice(-CAPACITY);
  }

  // Steps come in order, but for those that are done or told again.
  append(row) {
    if (this.length === 0 || row.step > this.last.step) {
      this.rows.push(row);
      if (this.length > CAPACITY) this.rows.shift();
      return;
    }
    const at = this.rows.findIndex(({ step }) => step >= row.step);
    if (this.rows[at].step === row.step) this.rows[at] = { ...this.rows[at], ...row };
    else this.rows.splice(at, 0, row);
    if (this.length > CAPACITY) this.rows.shift();
  }

  // Rows of the steps of a window, both ends included; all of them for null.
  within(steps) {
    if (!steps) return this.rows;
    return this.rows.filter(({ step }) => step >= steps.from && step <= steps.to);
  }
}

// One column of rows as an array for a chart; what is not known is null.
export function column(rows, name) {
  return rows.map((row) => row[name] ?? null);
}
