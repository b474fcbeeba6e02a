// What happened to the job: policies with their reasons, and mode and speed changes as they come.

import { byId, element, setState, setText } from "./dom.js";
import { formatPercent, formatRatio, formatTime } from "./format.js";

const MAX_EVENTS = 100;

export class EventsView {
  constructor() {
    this.section = byId("events");
    this.list = byId("event-list");
    this.heard = [];
    this.speeds = new Map();
  }

  // The balancer keeps policies; mode and speed changes are known from when the page opened.
  hearMode(mode) {
    this.hear("Mode", `The mode is now ${mode}`);
  }

  hearRanks(ranks) {
    for (const { rank, speed } of ranks) {
      const [before, now] = [this.speeds.get(rank), formatRatio(speed)];
      this.speeds.set(rank, now);
      if (before === undefined || before === now) continue;
      this.hear("Speed", `Rank ${rank} now runs at ${now} of the usual speed, before at ${before}`);
    }
  }

  hear(label, text) {
    this.heard.unshift({ label, text, seconds: Date.now() / 1000, notes: ["seen by this page"] });
    this.heard.length = Math.min(this.heard.length, MAX_EVENTS);
  }

  // decision: the balancer's sentence on why it does or does not want another policy.
  show(policies, decision) {
    byId("decision").hidden = !decision;
    setText(byId("decision"), decision ?? "");
    const events = [...this.heard, ...policies.map((policy) => this.policyEvent(policy))]
      .sort((a, b) => b.seconds - a.seconds)
      .slice(0, MAX_EVENTS);
    if (events.length === 0) {
      setState(this.section, "empty", "Nothing has changed since the job began.");
      return;
    }
    setState(this.section, "ready");
    this.list.replaceChildren(...events.map((event) => this.item(event)));
  }

  policyEvent(policy) {
    const { first_step: first } = policy;
    const since = first === null ? "not in effect yet" : `since step ${first}`;
    const effect = policy.effect ? [policy.effect.verdict] : [];
    const notes = [since, ...effect, policy.pooling ? "pools on" : "pools off", policy.checksum];
    if (policy.predicted_gain !== null) {
      notes.splice(1, 0, `predicted gain ${formatPercent(policy.predicted_gain)}`);
    }
    const label = `Policy ${policy.version}`;
    return { label, text: policy.reason, seconds: policy.created_s, notes };
  }

  item({ label, text, seconds, notes }) {
    const when = seconds > 0 ? [formatTime(seconds)] : [];
    return element(
      "li",
      {},
      element("p", {}, element("strong", {}, label), " ", text),
      element("p", { class: "note" }, [...when, ...notes].join(" · ")),
    );
  }
}
