// What every part of a page has in common: a title, a state, a body, a table, and ways to take it away.

import { element, setState, setText } from "./dom.js";
import { exportMenu } from "./export.js";
import { fillTable } from "./table.js";
import { view } from "./view.js";

const IDLE_MS = 2_000;
const whenIdle = window.requestIdleCallback
  ? (run) => window.requestIdleCallback(run, { timeout: IDLE_MS })
  : (run) => setTimeout(run, IDLE_MS / 4);

// A subclass says: static title and about; build(body), draw(store), and, if it has figures,
// table() -> {columns: [{name, unit?, format?}], rows: [[...]]} and canvases() -> [canvas, ...].
export class Panel extends HTMLElement {
  static title = "";
  static about = "";
  static wide = false;

  connectedCallback() {
    if (this.body) return;
    const { title, about, wide } = this.constructor;
    this.classList.add("panel");
    this.classList.toggle("wide", wide);
    this.setAttribute("role", "region");
    this.setAttribute("aria-labelledby", `${this.id}-title`);
    this.heading = element("h2", { id: `${this.id}-title` }, title);
    this.actions = element("div", { class: "actions" });
    this.body = element("div", { class: "body" });
    this.append(
      element("div", { class: "title" }, this.heading, this.actions),
      element("p", { class: "about" }, about),
      element("p", { class: "state" }, "Loading."),
      this.body,
    );
    this.build(this.body);
    if (this.table) this.addTable();
    setState(this, "loading", "Loading.");
    this.watchSight();
  }

  // Who is out of sight is drawn when there is nothing else to do.
  watchSight() {
    this.inSight = false;
    new IntersectionObserver(([entry]) => {
      this.inSight = entry.isIntersecting;
      if (this.inSight && this.missed) this.show();
    }, { rootMargin: "200px" }).observe(this);
  }

  showLater() {
    if (this.missed) return;
    this.missed = true;
    whenIdle(() => { if (this.missed) this.show(); });
  }

  addTable() {
    this.tableBox = element("div", {
      class: "scroll table-view",
      tabindex: "0",
      role: "region",
      "aria-label": `${this.constructor.title} as a table`,
    });
    this.tableButton = element("button", { type: "button", class: "quiet" }, "Table");
    this.tableButton.addEventListener("click", () => {
      view.toggle("tables", this.id, !view.has("tables", this.id));
      this.update(this.store);
    });
    this.actions.append(this.tableButton, exportMenu(this));
    this.append(this.tableBox);
  }

  // Show what the store has, or why there is nothing to show.
  update(store) {
    this.store = store;
    if (!store) return;
    const failure = store.failures.get(this.id);
    const empty = failure ? null : this.emptySentence(store);
    if (failure) setState(this, "error", failure);
    else if (empty) setState(this, "empty", empty);
    else setState(this, "ready");
    if (failure || empty) return;
    if (this.inSight) this.show();
    else this.showLater();
  }

  show() {
    this.missed = false;
    if (this.dataset.state !== "ready") return;
    const asTable = Boolean(this.tableBox) && view.has("tables", this.id);
    this.body.hidden = asTable;
    if (this.tableBox) {
      this.tableBox.hidden = !asTable;
      this.tableButton.setAttribute("aria-pressed", String(asTable));
    }
    if (asTable) fillTable(this.tableBox, this.table());
    else this.draw(this.store);
  }

  // A sentence where there is nothing to show yet.
  emptySentence() {
    return null;
  }

  build() {}

  draw() {}

  canvases() {
    return [...this.body.querySelectorAll("canvas")];
  }

  // What is read aloud and printed beside the picture.
  get sentence() {
    return this.readout?.textContent ?? "";
  }

  say(text) {
    if (this.readout) setText(this.readout, text);
  }
}
