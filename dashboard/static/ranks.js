// The table of ranks: where each stands, what it is predicted to need and what it needed.

import { button, choice, element, numberCell, scrollBox } from "./dom.js";
import { formatRatio, formatSeconds } from "./format.js";
import { Panel } from "./panel.js";
import { view } from "./view.js";

const MAX_ROWS = 64;

const ORDERS = {
  slowest: ["slowest first", (a, b) => (b.slowdown ?? 0) - (a.slowdown ?? 0)],
  rank: ["by rank", (a, b) => a.rank - b.rank],
};
const HEADS = [
  ["rank", "the rank's number"],
  ["node", "the host it runs on"],
  ["dp", "index along data parallelism"],
  ["cp", "index in the context-parallel group"],
  ["pp", "index along pipeline parallelism"],
  ["pool", "the pool that it shares work in"],
  ["slowdown", "its attention time over the mean rank's"],
  ["measured", "attention time of the newest step"],
  ["predicted", "what the model says of it"],
  ["speed", "against the job's usual rank"],
];

export class RanksPanel extends Panel {
  static title = "Ranks";
  static about =
    "Attention time in the last step of each rank; speed is against the job's usual rank. A rank's number opens it.";
  static wide = true;

  build(body) {
    const orders = Object.entries(ORDERS).map(([name, [text]]) => [name, text]);
    this.order = choice(Object.fromEntries(orders), { id: "rank-order" });
    this.order.addEventListener("change", () => this.update(this.store));
    const find = { type: "search", id: "rank-find", size: "12", placeholder: "rank or node" };
    this.find = element("input", find);
    this.find.addEventListener("input", () => this.update(this.store));
    this.actions.append(
      element("label", { class: "pick" }, "Find ", this.find),
      element("label", { class: "pick" }, "Order ", this.order),
    );
    const heads = HEADS.map(([name, title], at) => {
      const kind = at === 1 ? {} : { class: "number" };
      return element("th", { scope: "col", ...kind }, element("abbr", { title }, name));
    });
    this.rows = element("tbody", { id: "rank-rows" });
    this.note = element("p", { class: "note", id: "rank-note" });
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), this.rows);
    body.append(scrollBox("Table of ranks", table), this.note);
  }

  emptySentence({ ranks }) {
    return ranks.length === 0 ? "No rank has reported yet." : null;
  }

  // The slowdown is taken from the same seconds that stand beside it, all of one step.
  sorted() {
    const ranks = (this.store?.ranks ?? []).filter(Boolean);
    const mean = ranks.reduce((sum, rank) => sum + (rank.kernel_seconds ?? 0), 0) / ranks.length;
    const slowdown = (rank) => (mean > 0 ? rank.kernel_seconds / mean : null);
    const wanted = this.find.value.trim().toLowerCase();
    const matches = ({ rank, node }) =>
      !wanted || String(rank) === wanted || node.toLowerCase().includes(wanted);
    return ranks
      .filter(matches)
      .map((rank) => ({ ...rank, slowdown: slowdown(rank) }))
      .sort(ORDERS[this.order.value][1]);
  }

  draw() {
    const ranks = this.sorted();
    this.rows.replaceChildren(...ranks.slice(0, MAX_ROWS).map((rank) => this.row(rank)));
    const shown = Math.min(MAX_ROWS, ranks.length);
    const cut = ranks.length > shown ? `${shown} of ${ranks.length} ranks are listed.` : "";
    this.note.hidden = !cut && ranks.length > 0;
    this.note.textContent = ranks.length ? cut : "No rank or node is called so.";
  }

  row(rank) {
    const open = button(rank.rank, () => view.set({ rank: rank.rank }), {
      class: "link",
      "aria-label": `Open rank ${rank.rank}`,
    });
    return element(
      "tr",
      {},
      element("th", { scope: "row", class: "number" }, open),
      element("td", {}, rank.node),
      ...["dp", "cp", "pp", "pool"].map((name) => numberCell(rank[name])),
      numberCell(formatRatio(rank.slowdown)),
      numberCell(formatSeconds(rank.kernel_seconds)),
      numberCell(formatSeconds(rank.predicted_seconds)),
      numberCell(formatRatio(rank.speed)),
    );
  }

  table() {
    const place = ["rank", "node", "dp", "cp", "pp", "pool"];
    const names = [...place, "slowdown", "kernel_seconds", "predicted_seconds", "speed", "doubt"];
    const units = { kernel_seconds: "s", predicted_seconds: "s" };
    const columns = names.map((name) => ({ name, unit: units[name] }));
    return { columns, rows: this.sorted().map((rank) => names.map((name) => rank[name] ?? null)) };
  }
}

customElements.define("libra-ranks", RanksPanel);
