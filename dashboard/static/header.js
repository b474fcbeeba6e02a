// The bar on top: how fresh the data are, and the way to the other pages.

import { byId, setText } from "./dom.js";
import { formatAge } from "./format.js";

const STALE_S = 30;

export class Header {
  constructor() {
    this.badge = byId("badge");
    this.freshAtMs = null;
    this.connection = "connecting";
  }

  showConnection(state) {
    this.connection = state;
    this.show();
  }

  // The newest report is so old; null where there is none.
  heard(ageSeconds) {
    this.freshAtMs = ageSeconds === null ? null : performance.now() - 1000 * ageSeconds;
    this.show();
  }

  get ageSeconds() {
    return this.freshAtMs === null ? null : (performance.now() - this.freshAtMs) / 1000;
  }

  // What is old is said to be, and looks it: figures of a job that is silent are no news.
  show() {
    const age = this.ageSeconds;
    const stale = age !== null && age >= STALE_S;
    this.badge.dataset.connection = this.connection;
    this.badge.dataset.fresh = String(!stale);
    document.body.dataset.stale = String(stale);
    setText(byId("connection"), this.connection);
    const told = age === null ? "" : `last report ${formatAge(age)} ago`;
    setText(byId("age"), stale ? `stale: ${told}` : told);
  }
}
