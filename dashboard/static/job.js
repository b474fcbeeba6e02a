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

// Figures of ranks by steps to ask for at once, about 10 MB of JSON; later steps come as events.
const MAX_CELLS = 500_000;
const MIN_STEPS = 50;
const DRAW_MS = 200;
const SUMMARY_FIGURES = ["step", "skew", "predicted_skew", "home_skew", "step_seconds"];

// An event carries thousands of ranks as 16-bit integers, little-endian, in base64.
function unpackPermille(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const ranks = bytes.length / 2;
  return Float32Array.from({ length: ranks }, (_, i) => view.getUint16(2 * i, true) / 1000);
}

export class JobPage {
  constructor(job, header) {
    this.job = job;
    this.api = new JobApi(job);
    this.header = header;
    this.summary = null;
    this.history = new History();
    this.model = null;
    this.policies = [];
    this.views = {
      skew: new SkewView(),
      heatmap: new HeatmapView(),
      model: new ModelView(),
      exchange: new ExchangeView(),
      events: new EventsView(),
      ranks: new RanksView(),
    };
    // What each section shows, to be fetched whole at first and where it is old.
    this.fetches = {
      skew: () => this.fetchSteps("skew"),
      heatmap: () => this.fetchRanks(this.affordableSteps()),
      model: () => this.fetchModel(),
      exchange: () => this.fetchSteps("exchange"),
      events: () => this.fetchPolicies(),
      ranks: () => this.fetchRanks(1),
    };
    this.old = new Set();
    this.drawing = null;
    this.failed = new Map();
    this.stream = new Stream(this.api.eventsUrl(), {
      event: (kind, data) => this.onEvent(kind, data),
      refetch: () => this.refetch(),
      state: (state) => this.header.showConnection(state),
    });
  }

  // The stream asks for the views once it is open. A job that is not there yet has no stream.
  async open() {
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
    this.allIsOld();
    if (await this.fetchSummary()) await this.fetchOld();
  }

  // What no event carries (diagnosis, a rank's seconds, fit points) is fetched every few seconds.
  async refresh() {
    if (!this.summary) {
      await this.open();
      return;
    }
    const { step } = this.summary;
    if (!(await this.fetchSummary())) return;
    // A step of the last round that no event has brought: the stream is broken or held back by a
    // proxy, so this is polling.
    if ((step ?? -1) > (this.history.last?.step ?? -1)) this.allIsOld();
    await this.fetchOld();
  }

  allIsOld() {
    this.old = new Set(Object.keys(this.fetches));
  }

  async fetchSummary() {
    try {
      const summary = await this.api.summary();
      // A new attempt goes back in steps; the old one's must not stand behind them.
      if (this.summary && summary.attempt !== this.summary.attempt) this.startAnew();
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

  startAnew() {
    this.history.clear();
    this.allIsOld();
  }

  async fetchOld() {
    const names = new Set([...this.old, ...this.failed.keys()]);
    this.old.clear();
    await Promise.all([...names].map((name) => this.attempt(name)));
    this.draw();
  }

  // A view that cannot be read says so in its own section; the others go on.
  async attempt(name) {
    try {
      await this.fetches[name]();
      this.failed.delete(name);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.failed.set(name, `${error.message}. Trying again.`);
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

  affordableSteps() {
    const most = Math.floor(MAX_CELLS / Math.max(1, this.summary.world_size));
    return Math.min(CAPACITY, Math.max(MIN_STEPS, most));
  }

  setRanks(ranks) {
    this.views.ranks.setRanks(ranks);
    this.views.events.hearRanks(ranks);
  }

  async fetchModel() {
    this.model = await this.api.model();
  }

  async fetchPolicies() {
    this.policies = await this.api.policies();
  }

  onEvent(kind, data) {
    if (kind === "step") this.onStep(data);
    if (kind === "model") this.old.add("model");
    if (kind === "policy") this.onPolicy(data);
    if (kind === "effect") this.onEffect(data);
    if (kind === "mode") this.onMode(data.mode);
    if (kind === "ranks") this.setRanks(data.ranks);
    this.drawSoon();
  }

  onStep({ slowdown_permille: permille, ...row }) {
    this.history.append({ ...row, slowdown: unpackPermille(permille) });
    this.header.heard(0);
    this.old.add("ranks");
    // No event tells that a policy took effect; the first step under it does.
    const waits = ({ first_step, version }) => first_step === null && version <= row.policy_version;
    if (this.policies.some(waits)) this.old.add("events");
    for (const name of SUMMARY_FIGURES) this.summary[name] = row[name];
  }

  onPolicy(policy) {
    this.onEffect(policy);
    this.summary.policy_version = policy.version;
  }

  // What a trial said of a policy that may no longer be in force.
  onEffect(policy) {
    const others = this.policies.filter(({ version }) => version !== policy.version);
    this.policies = [...others, policy].sort((a, b) => a.version - b.version);
  }

  onMode(mode) {
    this.views.events.hearMode(mode);
    this.summary.mode = mode;
  }

  // Steps may come faster than anyone can look, and thousands of ranks take time to draw.
  drawSoon() {
    if (this.drawing) return;
    this.drawing = setTimeout(() => {
      this.drawing = null;
      this.draw();
    }, DRAW_MS);
  }

  draw() {
    if (!this.summary) return;
    this.header.show(this.summary, this.history.last);
    this.header.showAge();
    this.show("skew", this.history, this.policies);
    this.show("heatmap", this.history);
    if (this.model) this.show("model", this.model);
    this.show("exchange", this.history);
    this.show("events", this.policies, this.summary.decision);
    this.show("ranks");
  }

  show(name, ...data) {
    const view = this.views[name];
    const error = this.failed.get(name);
    if (error) setState(view.section, "error", error);
    else view.show(...data);
  }
}
