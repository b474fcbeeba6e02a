// All jobs of the balancer: which of them is sick is seen at a glance.

import { ApiError, fetchJobs, jobsEventsUrl } from "./api.js";
import { button, copyOf, element, numberCell, scrollBox, setText } from "./dom.js";
import { exportMenu } from "./export.js";
import { formatRankHours, formatRatio, UNKNOWN } from "./format.js";
import { showContent, showNotice } from "./notice.js";
import { SharedStream } from "./shared_stream.js";
import { pageUrl, view } from "./view.js";

const ABOUT =
  "Every job that this balancer knows. Skew is the slowest rank's attention time over the mean; lost is what " +
  "ranks waited for slower ones.";
const SPARK = { width: 96, height: 24 };
const MAX_ROWS = 500;
const STATES = ["active", "stale", "finished"];
// name, what it sorts by, whether large ones come first.
const COLUMNS = [
  ["job", (job) => job.job, false],
  ["state", (job) => STATES.indexOf(job.state), false],
  ["ranks", (job) => job.ranks_reporting, true],
  ["skew", (job) => job.skew ?? 0, true],
  ["lately", null, false],
  ["lost", (job) => job.wasted_seconds, true],
  ["recovered", (job) => job.recovered_seconds, true],
  ["mode", (job) => job.mode, false],
  ["diagnosis", (job) => job.diagnosis, false],
];
const DEFAULT_SORT = "skew";

export class JobsPage {
  static title = "Jobs";

  constructor(header) {
    this.header = header;
    this.jobs = new Map();
    this.name = "all";
    this.id = "jobs";
    this.stream = new SharedStream(jobsEventsUrl(), {
      event: (kind, data) => this.heard(kind, data),
      refetch: () => this.refresh(),
      state: (state) => this.header.showConnection(state),
    });
  }

  get title() {
    return "Jobs";
  }

  async open(content) {
    this.build(content);
    await this.refresh();
    this.stream.start();
  }

  pause() {
    this.stream.rest(true);
  }

  resume() {
    this.stream.rest(false);
  }

  build(content) {
    const what = { placeholder: "job, state, cause", "aria-label": "Filter jobs" };
    const filter = element("input", { type: "search", id: "job-filter", ...what });
    filter.value = view.get("q") ?? "";
    filter.addEventListener("input", () => { view.set({ q: filter.value }); this.draw(); });
    this.heads = new Map(COLUMNS.map(([name, by]) => [name, this.head(name, by)]));
    this.rows = element("tbody", { id: "job-rows" });
    this.count = element("p", { class: "note", id: "job-count", role: "status" });
    const heads = element("thead", {}, element("tr", {}, ...this.heads.values()));
    const table = element("table", { class: "jobs" }, heads, this.rows);
    const actions = element("div", { class: "actions" }, filter, exportMenu(this));
    content.replaceChildren(
      element(
        "section",
        { class: "panel wide", id: "jobs", "aria-labelledby": "jobs-title" },
        element("div", { class: "title" }, element("h2", { id: "jobs-title" }, "Jobs"), actions),
        element("p", { class: "about" }, ABOUT),
        scrollBox("Table of jobs", table),
        this.count,
      ),
    );
  }

  head(name, by) {
    const numeric = ["ranks", "skew", "lost", "recovered"].includes(name);
    const node = element("th", { scope: "col", ...(numeric ? { class: "number" } : {}) });
    node.append(by ? button(name, () => this.sortBy(name), { class: "link" }) : name);
    return node;
  }

  sortBy(name) {
    const { column, reversed } = this.sort;
    view.set({ sort: column === name && !reversed ? `-${name}` : name });
    this.draw();
  }

  get sort() {
    const text = view.get("sort") ?? DEFAULT_SORT;
    const reversed = text.startsWith("-");
    const column = reversed ? text.slice(1) : text;
    const known = COLUMNS.some(([name, by]) => name === column && by);
    return known ? { column, reversed } : { column: DEFAULT_SORT, reversed: false };
  }

  async refresh() {
    try {
      const jobs = await fetchJobs();
      this.jobs = new Map(jobs.map((job) => [job.job, job]));
      this.noteAge(jobs);
      this.draw();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (this.jobs.size === 0) showNotice("No connection", `${error.message}. Trying again.`);
    }
  }

  heard(kind, { jobs, ended }) {
    if (kind !== "jobs") return;
    for (const job of jobs) this.jobs.set(job.job, job);
    if (jobs.length) this.noteAge(jobs);
    // Those that ended stay listed until the next round says how they ended.
    for (const name of ended) if (this.jobs.has(name)) this.jobs.get(name).state = "finished";
    this.draw();
  }

  // How long ago any job was heard of.
  noteAge(jobs) {
    const ages = jobs.map((job) => job.last_report_age_seconds).filter((age) => age !== null);
    this.header.heard(ages.length ? Math.min(...ages) : null);
  }

  shown() {
    const { column, reversed } = this.sort;
    const [, by, descending] = COLUMNS.find(([name]) => name === column);
    const wanted = (view.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const text = (job) => `${job.job} ${job.state} ${job.mode} ${job.cause} ${job.diagnosis}`.toLowerCase();
    const sign = descending === reversed ? 1 : -1;
    const order = (a, b) => {
      const [left, right] = [by(a), by(b)];
      if (left === right) return a.job < b.job ? -1 : 1;
      return left < right ? -sign : sign;
    };
    return [...this.jobs.values()]
      .filter((job) => wanted.every((word) => text(job).includes(word)))
      .sort(order);
  }

  draw() {
    if (this.jobs.size === 0) {
      showNotice("No job yet", "No agent has reported to this balancer. This page waits for one.");
      return;
    }
    showContent();
    const { column, reversed } = this.sort;
    for (const [name, node] of this.heads) {
      if (name === column) {
        const descending = COLUMNS.find(([own]) => own === name)[2] !== reversed;
        node.setAttribute("aria-sort", descending ? "descending" : "ascending");
      } else node.removeAttribute("aria-sort");
    }
    const jobs = this.shown();
    this.rows.replaceChildren(...jobs.slice(0, MAX_ROWS).map(row));
    const cut = jobs.length > MAX_ROWS ? `, ${MAX_ROWS} of them listed` : "";
    setText(this.count, `${jobs.length} of ${this.jobs.size} jobs${cut}`);
    document.title = `${this.jobs.size} jobs · Libra`;
  }

  canvases() {
    return [];
  }

  table() {
    const names = [
      ...["job", "state", "mode", "ranks_reporting", "world_size", "step", "skew", "home_skew"],
      ...["wasted_seconds", "recovered_seconds", "cause", "diagnosis"],
    ];
    const units = { wasted_seconds: "rank s", recovered_seconds: "rank s" };
    const columns = names.map((name) => ({ name, unit: units[name] }));
    return { columns, rows: this.shown().map((job) => names.map((name) => job[name] ?? null)) };
  }
}

function row(job) {
  const { ranks_reporting: told, world_size: all } = job;
  return element(
    "tr",
    { "data-cause": job.cause, "data-job": job.job },
    element("th", { scope: "row" }, element("a", { href: pageUrl({ job: job.job }) }, job.job)),
    element("td", {}, element("span", { class: `chip ${job.state}` }, job.state)),
    numberCell(told === all ? told : `${told} of ${all}`),
    numberCell(formatRatio(job.skew)),
    element("td", {}, sparkline(job.recent_skew ?? [])),
    numberCell(formatRankHours(job.wasted_seconds)),
    numberCell(job.recovered_seconds > 0 ? formatRankHours(job.recovered_seconds) : UNKNOWN),
    element("td", {}, job.mode),
    element("td", { class: "says" }, job.diagnosis),
  );
}

// Skew of the newest steps, from even at the bottom.
export function sparkline(values) {
  const ends = [values[0], values.at(-1)].map(formatRatio);
  const text = values.length ? `Skew lately: from ${ends[0]} to ${ends[1]}` : "No steps yet";
  const viewBox = `0 0 ${SPARK.width} ${SPARK.height}`;
  const node = copyOf("spark");
  for (const [name, value] of Object.entries({ viewBox, ...SPARK, "aria-label": text })) {
    node.setAttribute(name, value);
  }
  if (values.length < 2) return node;
  const top = Math.max(1.2, ...values);
  const x = (i) => (i / (values.length - 1)) * (SPARK.width - 2) + 1;
  const y = (value) => SPARK.height - 2 - ((value - 1) / (top - 1)) * (SPARK.height - 4);
  const points = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  node.firstElementChild.setAttribute("points", points);
  return node;
}
