// The page of one job: fetches what its panels show, follows its events, and draws now and then.

import "./exchange.js";
import "./headline.js";
import "./heatmap.js";
import "./model.js";
import "./policies.js";
import "./pools.js";
import "./rank.js";
import "./ranks.js";
import "./skew.js";
import "./whatif.js";
import { showContent, showNotice } from "./notice.js";
import { element } from "./dom.js";
import { SharedStream } from "./shared_stream.js";
import { JobStore } from "./store.js";
import { timed } from "./timing.js";
import { toolbar } from "./toolbar.js";
import { view } from "./view.js";

// Steps may come faster than anyone can look.
const DRAW_MS = 200;
const PANELS = [
  ...["skew", "heatmap", "rank", "pools", "whatif"],
  ...["model", "exchange", "policies", "ranks"],
];

export class JobPage {
  constructor(job, header) {
    this.header = header;
    this.store = new JobStore(job);
    this.store.reload = () => this.refetch();
    this.store.addEventListener("change", () => this.drawSoon());
    this.drawing = null;
    this.headline = element("libra-headline", { class: "top" });
    this.panels = PANELS.map((name) => element(`libra-${name}`, { id: name }));
    this.stream = new SharedStream(this.store.api.eventsUrl(), {
      event: (kind, data) => this.heard(kind, data),
      refetch: () => this.refetch(),
      state: (state) => this.header.showConnection(state),
    });
    view.addEventListener("change", ({ detail }) => this.lookedElsewhere(detail));
  }

  get title() {
    return this.store.name;
  }

  // The stream asks for the views once it is open. A job that is not there yet has no stream.
  async open(content) {
    content.replaceChildren(this.headline, toolbar(this.store), ...this.panels);
    if (await this.fetchSummary()) this.stream.start();
  }

  // While nobody is logged in, nothing is asked for.
  pause() {
    this.stream.rest(true);
  }

  resume() {
    this.stream.rest(false);
  }

  async refetch() {
    this.store.allIsOld();
    if (await this.fetchSummary()) await this.store.fetchOld();
  }

  // What no event carries (diagnosis, a rank's seconds, fit points) is fetched every few seconds.
  async refresh() {
    if (!this.store.summary) {
      if (await this.fetchSummary()) this.stream.start();
      return;
    }
    const { step } = this.store.summary;
    if (!(await this.fetchSummary())) return;
    // A step of the last round that no event has brought: the stream is broken or held back by a
    // proxy, so this is polling.
    if ((step ?? -1) > (this.store.history.last?.step ?? -1)) this.store.allIsOld();
    await this.store.fetchOld();
  }

  async fetchSummary() {
    const error = await this.store.fetchSummary();
    if (!error) {
      this.header.heard(this.store.summary.last_report_age_seconds);
      showContent();
      return true;
    }
    const gone = error.status === 404;
    const title = gone ? `There is no job “${this.store.name}”` : "No data";
    if (gone || !this.store.summary) showNotice(title, `${error.message}.`);
    return false;
  }

  heard(kind, data) {
    if (kind === "step") this.header.heard(0);
    this.store.heard(kind, data);
  }

  lookedElsewhere(names) {
    if (names.includes("rank")) {
      this.store.rank = null;
      this.store.old.add("rank");
      this.store.fetchOld().then(() => this.showRank());
    }
    this.draw();
  }

  // Whoever opens a rank wants to see it, and whoever closes it to go on where they were.
  showRank() {
    const panel = this.panels.find(({ id }) => id === "rank");
    if (panel.hidden) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    panel.scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
  }

  drawSoon() {
    if (this.drawing) return;
    this.drawing = setTimeout(() => this.draw(), DRAW_MS);
  }

  draw() {
    clearTimeout(this.drawing);
    this.drawing = null;
    if (!this.store.summary) return;
    timed("libra-draw", () => {
      this.headline.update(this.store);
      for (const panel of this.panels) panel.update(this.store);
    });
  }
}
