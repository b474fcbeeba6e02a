// The table of ranks: where each stands, what it is predicted to need and what it needed.

import { byId, element, setState, setText } from "./dom.js";
import { formatRatio, formatSeconds } from "./format.js";

const MAX_ROWS = 64;

const ORDERS = {
  slowest: (a, b) => (b.slowdown ?? 0) - (a.slowdown ?? 0),
  rank: (a, b) => a.rank - b.rank,
};

export class RanksView {
  constructor() {
    this.section = byId("ranks");
    this.body = byId("rank-rows");
    this.order = byId("rank-order");
    this.ranks = [];
    this.order.addEventListener("change", () => this.draw());
  }

  // The slowdown is taken from the same seconds that stand beside it, all of one step.
  setRanks(ranks) {
    const seconds = ranks.map((rank) => rank.kernel_seconds ?? 0);
    const mean = seconds.reduce((a, b) => a + b, 0) / ranks.length;
    const slowdown = (rank) => (mean > 0 ? rank.kernel_seconds / mean : null);
    this.ranks = ranks.map((rank) => ({ ...rank, slowdown: slowdown(rank) }));
  }

  show() {
    if (this.ranks.length === 0) {
      setState(this.section, "empty", "No rank has reported yet.");
      return;
    }
    setState(this.section, "ready");
    this.draw();
  }

  draw() {
    const rows = [...this.ranks].sort(ORDERS[this.order.value]);
    this.body.replaceChildren(...rows.slice(0, MAX_ROWS).map((rank) => this.row(rank)));
    const hidden = rows.length - MAX_ROWS;
    byId("rank-note").hidden = hidden <= 0;
    setText(byId("rank-note"), `${MAX_ROWS} of ${rows.length} ranks are listed.`);
  }

  row(rank) {
    const number = (text) => element("td", { class: "number" }, text);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, rank.rank),
      element("td", {}, rank.node),
      number(rank.dp),
      number(rank.cp),
      number(rank.pool),
      number(formatRatio(rank.slowdown)),
      number(formatSeconds(rank.kernel_seconds)),
      number(formatSeconds(rank.predicted_seconds)),
      number(formatRatio(rank.speed)),
    );
  }
}
