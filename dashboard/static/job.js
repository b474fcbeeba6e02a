// One job on the page: fetches its views, follows its events and hands both to the sections.

import { ApiError, JobApi } from "./api.js";
import { setState, showContent, showNotice } from "./dom.js";
import { EventsView } from "./events.js";
import { ExchangeView } from "./exchange.js";
import { HeatmapView } from "./heatmap.js";
import { CAPACITY, History } from "./history.js";
import { ModelView } from "./model.js";
import { RanksView } from "./ranks.js";
import { SkewView } from "./skew.js";
import { Stream } from "./stream.js";

export class JobPage {
  constructor(job, header) {
    this.job = job;
    this.api = new JobApi(job);
    this.header = header;
    this.history = new History();
    this.policies = [];
    this.summary = null;
    this.failed = new Map();
    this.views = {
      skew: new SkewView(),
      heatmap: new HeatmapView(),
      model: new ModelView(),
      exchange: new ExchangeView(),
      events: new EventsView(),
      ranks: new RanksView(),
    };
    this.stream = new Stream(this.api.eventsUrl(), {
      event: (kind, data) => this.onEvent(kind, data),
      refetch: () => this.refetch(),
      state: (state) => this.header.showConnection(state),
    });
  }

  async open() {
    await this.refetch();
    this.stream.follow();
  }

  async refetch() {
    if (!(await this.fetchSummary())) return;
    const parts = {
      skew: () => this.fetchSteps("skew"),
      heatmap: () => this.fetchRanks(CAPACITY),
      exchange: () => this.fetchSteps("exchange"),
      model: () => this.fetchModel(),
      events: () => this.fetchPolicies(),
    };
    await Promise.all(Object.entries(parts).map(([name, fetch]) => this.attempt(name, fetch)));
    this.draw();
  }

  // A view that cannot be read says so in its own section; the others go on.
  async attempt(name, fetch) {
    try {
      await fetch();
      this.failed.delete(name);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.failed.set(name, `${error.message}. Trying again.`);
    }
  }

  async fetchSummary() {
    try {
      const summary = await this.api.summary();
      if (this.summary && summary.attempt !== this.summary.attempt) this.history.clear();
      this.summary = summary;
      this.header.heard(summary.last_report_age_seconds);
      showContent();
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const title = error.status === 404 ? `There is no job “${this.job}”` : "No data";
      if (error.status === 404 || !this.summary) showNotice(title, `${error.message}.`);
      return false;
    }
  }

  async fetchSteps(name) {
    this.history.mergeView(await this.api.steps(name, CAPACITY));
  }

  async fetchRanks(last) {
    const view = await this.api.steps("ranks", last);
    this.history.mergeView(view);
    this.setRanks(view.ranks);
  }

  setRanks(ranks) {
    this.views.ranks.setRanks(ranks);
    this.views.events.hearRanks(ranks);
  }

  async fetchModel() {
    this.model = await this.api.model();
    this.modelIsOld = false;
  }

  async fetchPolicies() {
    this.policies = await this.api.policies();
  }

  onEvent(kind, data) {
    if (kind === "step") this.onStep(data);
    if (kind === "model") this.modelIsOld = true;
    if (kind === "policy") this.onPolicy(data);
    if (kind === "mode") this.views.events.hearMode(data.mode);
    if (kind === "mode" && this.summary) this.summary.mode = data.mode;
    if (kind === "ranks") this.setRanks(data.ranks);
    this.drawSoon();
  }

  onStep(row) {
    this.history.append(row);
    this.header.heard(0);
    this.summaryIsOld = true;
    const { step, skew, predicted_skew, home_skew, step_seconds, policy_version } = row;
    const figures = { step, skew, predicted_skew, home_skew, step_seconds, policy_version };
    if (this.summary) Object.assign(this.summary, figures);
  }

  onPolicy(policy) {
    const others = this.policies.filter(({ version }) => version !== policy.version);
    this.policies = [...others, policy].sort((a, b) => a.version - b.version);
  }

  // Steps may come faster than the screen: at most one drawing a frame.
  drawSoon() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      this.draw();
    });
  }

  draw() {
    if (!this.summary) return;
    this.header.show(this.summary);
    this.header.showAge();
    const { skew, heatmap, model, exchange, events, ranks } = this.views;
    const show = {
      skew: () => skew.show(this.history, this.policies),
      heatmap: () => heatmap.show(this.history),
      model: () => this.model && model.show(this.model),
      exchange: () => exchange.show(this.history),
      events: () => events.show(this.policies),
      ranks: () => ranks.show(this.history),
    };
    for (const [name, draw] of Object.entries(show)) {
      const error = this.failed.get(name);
      if (error) setState(this.views[name].section, "error", error);
      else draw();
    }
  }

  // What no event carries (diagnosis, a rank's seconds, fit points) is fetched every few seconds.
  async refresh() {
    const before = this.summary?.step;
    if (!(await this.fetchSummary())) return;
    // A proxy that holds back the stream looks like a quiet job; its newest step tells.
    const behind = (this.summary.step ?? -1) > (this.history.last?.step ?? -1);
    if (this.failed.size > 0 || (behind && before === this.summary.step)) await this.refetch();
    if (this.summaryIsOld) await this.attempt("ranks", () => this.fetchRanks(1));
    if (this.modelIsOld) await this.attempt("model", () => this.fetchModel());
    this.summaryIsOld = false;
    this.draw();
  }
}
