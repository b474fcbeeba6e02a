// The answer in ten seconds: what is the matter, since when, by how much, and what it costs.

import { button, element, setText } from "./dom.js";
import {
  formatAge,
  formatPercent,
  formatRankHours,
  formatRatio,
  formatSeconds,
  UNKNOWN,
} from "./format.js";
import { view } from "./view.js";

const DAY_S = 86_400;
const SPEAK_EVERY_MS = 15_000;
const MODES = {
  observe: "observing: nothing is changed",
  adapt: "adapting",
  frozen: "frozen: this policy stays",
};
const FIGURES = [
  ["skew-now", "Skew now", "skew-note"],
  ["lost", "Lost of each step", "lost-note"],
  ["home-skew", "Plain Ulysses would have", "home-note"],
  ["step-seconds", "Step time", "step-note"],
  ["hours-lost", "Lost so far", "hours-note"],
  ["policy-version", "Policy version", "policy-note"],
];

// Seconds of a step that are lost, by all causes together.
export function lostSeconds({ lost_seconds: lost }) {
  return Object.values(lost ?? {}).reduce((sum, seconds) => sum + seconds, 0);
}

export class Headline extends HTMLElement {
  connectedCallback() {
    if (this.diagnosis) return;
    this.spokenAtMs = -Infinity;
    this.nodes = {};
    const node = (id, tag, attributes = {}) => {
      this.nodes[id] = element(tag, { id, ...attributes });
      return this.nodes[id];
    };
    this.diagnosis = node("diagnosis", "p", { class: "diagnosis" });
    const figures = FIGURES.map(([id, title, note], at) =>
      element(
        "div",
        { class: at === 0 ? "figure main" : "figure" },
        element("dt", {}, title),
        node(id, "dd"),
        node(note, "dd", { class: "note" }),
      ),
    );
    this.append(
      node("spoken", "p", { class: "hidden-text", role: "status" }),
      this.diagnosis,
      node("since", "p", { class: "since" }),
      node("culprits", "p", { class: "culprits" }),
      node("recommended", "p", { class: "recommended", hidden: "" }),
      element("dl", { class: "figures" }, ...figures),
      node("ranks-note", "p", { class: "note" }),
    );
  }

  update(store) {
    const { summary } = store;
    if (!summary) return;
    this.diagnosis.dataset.cause = summary.cause;
    const texts = {
      diagnosis: summary.diagnosis,
      since: sinceText(summary),
      "skew-now": formatRatio(summary.skew),
      "skew-note": skewNote(summary),
      lost: formatPercent(share(summary)),
      "lost-note": lostNote(summary),
      "home-skew": formatRatio(summary.home_skew),
      "home-note": homeNote(summary),
      "step-seconds": formatSeconds(summary.step_seconds),
      "step-note": `step ${summary.step ?? UNKNOWN}`,
      "hours-lost": formatRankHours(summary.wasted_seconds),
      "hours-note": hoursNote(summary),
      "policy-version": summary.policy_version ?? UNKNOWN,
      "policy-note": policyNote(summary, store.history.last),
      "ranks-note": ranksNote(summary),
    };
    for (const [id, text] of Object.entries(texts)) setText(this.nodes[id], text);
    this.showCulprits(summary, store.ranks);
    const { recommended } = this.nodes;
    recommended.hidden = !summary.recommended;
    if (summary.recommended) setText(recommended, `Recommended: ${summary.recommended.reason}`);
    document.title = `${formatRatio(summary.skew)} skew · ${summary.job} · Libra`;
    this.speak(summary);
  }

  // Ranks that the diagnosis names are one click away.
  showCulprits({ cause_ranks: ranks = [] }, rows) {
    const { culprits } = this.nodes;
    culprits.hidden = ranks.length === 0;
    const wanted = ranks.slice(0, 8).join();
    if (culprits.hidden || culprits.dataset.ranks === `${wanted}/${rows.length}`) return;
    culprits.dataset.ranks = `${wanted}/${rows.length}`;
    const links = ranks.slice(0, 8).map((rank) => {
      const host = rows[rank] ? ` on ${rows[rank].node}` : "";
      return button(`rank ${rank}${host}`, () => view.set({ rank }), { class: "link" });
    });
    const more = ranks.length > links.length ? ` and ${ranks.length - links.length} more` : "";
    const listed = links.flatMap((link, at) => (at ? [", ", link] : [link]));
    culprits.replaceChildren("Look at ", ...listed, more);
  }

  // A screen reader gets the state now and then, not every step.
  speak(summary) {
    if (performance.now() - this.spokenAtMs < SPEAK_EVERY_MS) return;
    this.spokenAtMs = performance.now();
    const figures = `skew ${formatRatio(summary.skew)}, policy ${summary.policy_version}`;
    setText(this.nodes.spoken, `Step ${summary.step ?? UNKNOWN}: ${figures}. ${summary.diagnosis}`);
  }
}

function share(summary) {
  return summary.step_seconds ? Math.min(1, lostSeconds(summary) / summary.step_seconds) : null;
}

function sinceText({ since_step: step, since_seconds: seconds }) {
  if (step === null || step === undefined) return "";
  return `Uneven since step ${step}, for ${formatAge(seconds)} of steps.`;
}

function skewNote({ skew, predicted_skew: predicted }) {
  const wasted = typeof skew === "number" ? 1 - 1 / skew : null;
  const parts = wasted === null ? [] : [`ranks wait ${Math.round(100 * wasted)} % on average`];
  if (typeof predicted === "number") parts.push(`model says ${formatRatio(predicted)}`);
  return parts.join(" · ");
}

function lostNote(summary) {
  const lost = share(summary);
  if (!lost) return "";
  const perDay = formatRankHours(lost * summary.world_size * DAY_S);
  return `${formatSeconds(lostSeconds(summary))} a step · ${perDay} a day`;
}

function homeNote({ recovered_share: recovered, recoverable_share: recoverable }) {
  const parts = ["same data, unbalanced"];
  if (recovered > 0) parts.push(`${formatPercent(recovered)} of a step saved`);
  if (recoverable > 0) parts.push(`${formatPercent(recoverable)} to save`);
  return parts.join(" · ");
}

function hoursNote({ recovered_seconds: recovered }) {
  if (recovered > 0) return `${formatRankHours(recovered)} recovered by Libra`;
  return "waiting for slower ranks";
}

function policyNote(summary, newest) {
  const mode = MODES[summary.mode] ?? summary.mode;
  const behind = newest && newest.policy_version !== summary.policy_version;
  return behind ? `${mode}; ranks still run ${newest.policy_version}` : mode;
}

function ranksNote(summary) {
  const parts = [
    `${summary.ranks_reporting} of ${summary.world_size} ranks report`,
    `attempt ${summary.attempt}`,
    summary.state,
  ];
  if (summary.dropped > 0) parts.push(`${summary.dropped} observations lost by agents`);
  if (summary.rejected > 0) parts.push(`${summary.rejected} reports refused`);
  return parts.join(" · ");
}

customElements.define("libra-headline", Headline);
