// The newest steps of the job, merged from the views and from the live events, keyed by step.

export const CAPACITY = 600;

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.byStep = new Map();
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
    const columns = Object.entries(view).filter(([name]) => name !== "steps" && name !== "ranks");
    view.steps.forEach((step, i) => {
      this.put({ step, ...Object.fromEntries(columns.map(([name, values]) => [name, values[i]])) });
    });
    this.settle();
  }

  append(row) {
    this.put(row);
    this.settle();
  }

  put(row) {
    this.byStep.set(row.step, { ...this.byStep.get(row.step), ...row });
  }

  settle() {
    const rows = [...this.byStep.values()].sort((a, b) => a.step - b.step);
    for (const row of rows.slice(0, -CAPACITY)) this.byStep.delete(row.step);
    this.rows = rows.slice(-CAPACITY);
  }

  // One column as an array for a chart; what is not known is null.
  column(name) {
    return this.rows.map((row) => row[name] ?? null);
  }
}
