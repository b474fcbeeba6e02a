// All that is known of one job: what was fetched, and what events have added since.

import { ApiError, JobApi } from "./api.js";
import { CAPACITY, History } from "./history.js";
import { Matrix, unpack } from "./matrix.js";
import { timed } from "./timing.js";
import { view } from "./view.js";

const SUMMARY_FIGURES = ["step", "skew", "predicted_skew", "home_skew", "step_seconds"];
const MAX_CHANGES = 100;

export class JobStore extends EventTarget {
  constructor(job) {
    super();
    this.name = job;
    this.api = new JobApi(job);
    this.summary = null;
    this.history = new History();
    this.matrix = new Matrix();
    this.ranks = [];
    this.model = null;
    this.policies = [];
    this.decisions = [];
    this.loads = null;
    this.advice = null;
    this.rank = null;
    this.waveFits = [];
    // Changes that the balancer keeps no list of, as seen since the page was opened.
    this.changes = [];
    this.failures = new Map();
    this.old = new Set();
    // What each panel shows, to be fetched whole at first and where it is old.
    this.fetches = {
      skew: () => this.fetchSkew(),
      heatmap: () => this.fetchSlowdowns(),
      exchange: () => this.fetchExchange(),
      model: async () => { this.model = await this.api.model(); },
      policies: async () => { Object.assign(this, await this.api.policies()); },
      ranks: async () => { this.setRanks((await this.api.steps("ranks", 1)).ranks); },
      pools: async () => { this.loads = await this.api.loads(); },
      whatif: async () => { this.advice = await this.api.advice(); },
      rank: () => this.fetchRank(),
    };
  }

  // The steps that the reader looks at, oldest first.
  get rows() {
    return this.history.within(view.window);
  }

  changed() {
    this.dispatchEvent(new Event("change"));
  }

  allIsOld() {
    this.old = new Set(Object.keys(this.fetches));
  }

  // Returns what went wrong; null if nothing did.
  async fetchSummary() {
    try {
      const summary = await this.api.summary();
      // A new attempt goes back in steps; the old one's must not stand behind them.
      if (this.summary && summary.attempt !== this.summary.attempt) this.startAnew();
      this.summary = summary;
      return null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return error;
    }
  }

  startAnew() {
    this.history.clear();
    this.matrix.clear();
    this.redraw = true;
    this.allIsOld();
  }

  // A view that cannot be read says so in its own panel; the others go on.
  async fetchOld() {
    const names = new Set([...this.old, ...this.failures.keys()]);
    this.old.clear();
    await Promise.all([...names].map((name) => this.attempt(name)));
    this.changed();
  }

  async attempt(name) {
    try {
      await this.fetches[name]();
      this.failures.delete(name);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.failures.set(name, `${error.message}. Trying again.`);
    }
  }

  async fetchSkew() {
    this.history.mergeView(await this.api.steps("skew", CAPACITY));
  }

  async fetchExchange() {
    const answer = await this.api.steps("exchange", CAPACITY);
    this.waveFits = answer.fits;
    this.history.mergeView(answer);
  }

  // Only the steps that are not here: thousands of ranks are megabytes.
  async fetchSlowdowns() {
    const [here, newest] = [this.matrix.lastStep, this.summary.step ?? 0];
    const missing = here === null || newest < here ? CAPACITY : newest - here + 1;
    const last = Math.min(CAPACITY, Math.max(1, missing));
    const buffer = await this.api.slowdown(last);
    timed("libra-merge", () => this.matrix.merge(buffer));
    this.redraw = true;
  }

  async fetchRank() {
    const rank = view.number("rank");
    this.rank = rank === null ? null : await this.api.rank(rank, CAPACITY);
  }

  setRanks(ranks) {
    for (const { rank, speed } of ranks) {
      const before = this.ranks[rank]?.speed;
      if (before !== undefined && before.toFixed(2) !== speed.toFixed(2)) {
        const [now, then] = [speed, before].map((value) => value.toFixed(2));
        this.note("Speed", `Rank ${rank} now runs at ${now} of the usual speed, before at ${then}`);
      }
    }
    this.ranks = [];
    for (const row of ranks) this.ranks[row.rank] = row;
  }

  note(label, text) {
    this.changes.unshift({ label, text, seconds: Date.now() / 1000 });
    this.changes.length = Math.min(this.changes.length, MAX_CHANGES);
  }

  heard(kind, data) {
    if (kind === "step") this.onStep(data);
    if (kind === "model") this.old.add("model");
    if (kind === "policy") this.onPolicy(data);
    if (kind === "effect") this.putPolicy(data);
    if (kind === "mode") this.onMode(data.mode);
    if (kind === "ranks") this.setRanks(data.ranks);
    this.changed();
  }

  onStep({ slowdown_permille: permille, ...row }) {
    this.history.append(row);
    const how = this.matrix.put(row.step, unpack(permille));
    if (how !== "appended") this.redraw = true;
    for (const name of ["ranks", "pools", "rank"]) this.old.add(name);
    // No event tells that a policy took effect; the first step under it does.
    const waits = ({ first_step, version }) => first_step === null && version <= row.policy_version;
    if (this.policies.some(waits)) this.old.add("policies");
    if (row.step % 8 === 0) this.old.add("whatif");
    if (!this.summary) return;
    for (const name of SUMMARY_FIGURES) this.summary[name] = row[name];
  }

  onPolicy(policy) {
    this.putPolicy(policy);
    this.old.add("policies");
    if (this.summary) this.summary.policy_version = policy.version;
  }

  // What a trial said of a policy that may no longer be in force.
  putPolicy(policy) {
    const others = this.policies.filter(({ version }) => version !== policy.version);
    this.policies = [...others, policy].sort((a, b) => a.version - b.version);
  }

  onMode(mode) {
    this.note("Mode", `The mode is now ${mode}`);
    if (this.summary) this.summary.mode = mode;
  }

  // Steps at which something changed: policies that took effect, and restarts.
  marks() {
    const policies = this.policies
      .filter(({ first_step: step, version }) => step !== null && version > 0)
      .map(({ first_step: step, version }) => ({ step, label: `policy ${version}` }));
    const { rows } = this.history;
    const restarts = rows
      .filter((row, i) => i > 0 && row.attempt !== undefined && rows[i - 1].attempt !== row.attempt)
      .map(({ step, attempt }) => ({ step, label: `restart, attempt ${attempt}` }));
    return [...policies, ...restarts].sort((a, b) => a.step - b.step);
  }
}
