// The top of the page: which job, how fresh its data are, its diagnosis and its main figures.

import { byId, element, setText } from "./dom.js";
import { formatAge, formatPercent, formatRatio, formatSeconds, UNKNOWN } from "./format.js";

const STALE_S = 30;
const SPEAK_EVERY_MS = 15_000;
const MODES = {
  observe: "observing: nothing is changed",
  adapt: "adapting",
  frozen: "frozen: this policy stays",
};

export class Header {
  constructor(onPick) {
    this.picker = byId("job");
    this.picker.addEventListener("change", () => onPick(this.picker.value));
    this.freshAtMs = null;
    this.spokenAtMs = -Infinity;
  }

  // Options are rebuilt only when they differ, or an open list would close under the reader.
  showJobs(jobs, chosen) {
    const names = jobs.map((job) => job.job);
    if (!names.includes(chosen)) names.unshift(chosen);
    const states = new Map(jobs.map((job) => [job.job, job.state]));
    const label = (name) => (states.has(name) ? `${name} (${states.get(name)})` : name);
    const wanted = names.map(label).join("\n");
    if (this.options === wanted) return;
    this.options = wanted;
    this.picker.replaceChildren(
      ...names.map((name) => element("option", { value: name }, label(name))),
    );
    this.picker.value = chosen;
  }

  showConnection(state) {
    byId("badge").dataset.connection = state;
    setText(byId("connection"), state);
  }

  heard(ageSeconds) {
    this.freshAtMs = performance.now() - 1000 * ageSeconds;
  }

  showAge() {
    if (this.freshAtMs === null) return;
    const age = (performance.now() - this.freshAtMs) / 1000;
    byId("badge").dataset.fresh = String(age < STALE_S);
    setText(byId("age"), `last report ${formatAge(age)} ago`);
  }

  show(summary, newest) {
    setText(byId("diagnosis"), summary.diagnosis);
    byId("diagnosis").dataset.cause = summary.cause;
    setText(byId("skew-now"), formatRatio(summary.skew));
    setText(byId("home-skew"), formatRatio(summary.home_skew));
    setText(byId("step-seconds"), formatSeconds(summary.step_seconds));
    setText(byId("policy-version"), summary.policy_version ?? UNKNOWN);
    setText(byId("skew-note"), this.skewNote(summary));
    setText(byId("home-note"), this.homeNote(summary));
    setText(byId("step-note"), `step ${summary.step ?? UNKNOWN}`);
    setText(byId("policy-note"), this.policyNote(summary, newest));
    setText(byId("ranks-note"), this.ranksNote(summary));
    this.showRecommendation(summary.recommended);
    document.title = `${formatRatio(summary.skew)} skew · ${summary.job} · Libra`;
    this.speak(summary);
  }

  skewNote({ skew, predicted_skew: predicted }) {
    const wasted = typeof skew === "number" ? 1 - 1 / skew : null;
    const parts = wasted === null ? [] : [`ranks wait ${Math.round(100 * wasted)} % on average`];
    if (predicted !== null) parts.push(`model says ${formatRatio(predicted)}`);
    return parts.join(" · ");
  }

  homeNote({ recovered_share: recovered, recoverable_share: recoverable }) {
    const parts = ["same data, unbalanced"];
    if (recovered > 0) parts.push(`${formatPercent(recovered)} of a step saved`);
    if (recoverable > 0) parts.push(`${formatPercent(recoverable)} to save`);
    return parts.join(" · ");
  }

  policyNote(summary, newest) {
    const mode = MODES[summary.mode] ?? summary.mode;
    const behind = newest && newest.policy_version !== summary.policy_version;
    return behind ? `${mode}; ranks still run ${newest.policy_version}` : mode;
  }

  ranksNote(summary) {
    const parts = [
      `${summary.ranks_reporting} of ${summary.world_size} ranks report`,
      `attempt ${summary.attempt}`,
      summary.state,
    ];
    if (summary.dropped > 0) parts.push(`${summary.dropped} observations lost by agents`);
    if (summary.rejected > 0) parts.push(`${summary.rejected} reports refused`);
    return parts.join(" · ");
  }

  showRecommendation(recommended) {
    byId("recommended").hidden = !recommended;
    if (recommended) setText(byId("recommended"), `Recommended: ${recommended.reason}`);
  }

  // A screen reader gets the state now and then, not every step.
  speak(summary) {
    if (performance.now() - this.spokenAtMs < SPEAK_EVERY_MS) return;
    this.spokenAtMs = performance.now();
    const figures = `skew ${formatRatio(summary.skew)}, policy ${summary.policy_version}`;
    setText(byId("spoken"), `Step ${summary.step ?? UNKNOWN}: ${figures}. ${summary.diagnosis}`);
  }
}
