// What was decided and done: each policy with its reason, its predicted and its measured effect.

import { ApiError } from "./api.js";
import { ask } from "./confirm.js";
import { button, element, scrollBox, setText } from "./dom.js";
import { formatDate, formatPercent, formatRatio, UNKNOWN } from "./format.js";
import { Panel } from "./panel.js";

const MAX_ENTRIES = 100;
const MAX_DECISIONS = 20;
const POOLING = { true: "on: move tiles and place sequences", false: "off: plain Ulysses" };
const MODES = {
  observe: "observe: watch, change nothing",
  adapt: "adapt: publish what is recommended",
  frozen: "frozen: keep this policy",
};
const COLUMNS = [
  ...["version", "in force since step", "what", "reason", "author", "published", "predicted gain"],
  ...["verdict", "skew before", "skew after", "step time change", "checksum"],
];
const FORMATS = {
  "predicted gain": formatPercent,
  "skew before": formatRatio,
  "skew after": formatRatio,
  "step time change": changeText,
};

// +3.1 % and -3.1 %, of a ratio of step times.
function changeText(ratio) {
  if (typeof ratio !== "number") return UNKNOWN;
  return `${ratio > 1 ? "+" : ""}${formatPercent(ratio - 1)}`;
}

function effectText({ effect, version, first_step: first }) {
  if (effect) return `Measured: ${effect.verdict}. ${effect.reason}`;
  return first === null ? `Policy ${version} is not in effect yet.` : "Its effect is not measured yet.";
}

export class PoliciesPanel extends Panel {
  static title = "Policies";
  static about = "What Libra or a person changed, why, what was predicted, and what came of it.";

  build(body) {
    this.error = element("p", { class: "error", role: "alert", id: "policy-error" });
    this.operator = element(
      "div",
      { class: "operator", id: "operator" },
      button("Change mode", () => this.act(() => this.changeMode()), { id: "mode-button" }),
      button("Publish a policy", () => this.act(() => this.publish()), { id: "publish-button" }),
      button("Roll back", () => this.act(() => this.rollBack()), { id: "rollback-button" }),
    );
    this.decision = element("p", { class: "decision", id: "decision" });
    this.list = element("ol", { class: "events", id: "event-list" });
    const box = scrollBox("List of policies and changes", this.list);
    this.refused = element("ol", { class: "events", id: "decision-list" });
    const summary = element("summary", {}, "Decisions not to act");
    this.refusals = element("details", { class: "refusals" }, summary, this.refused);
    body.append(this.operator, this.error, this.decision, box, this.refusals);
  }

  draw({ policies, changes, decisions, summary }) {
    this.operator.hidden = document.body.dataset.admin !== "yes";
    this.decision.hidden = !summary?.decision;
    setText(this.decision, summary?.decision ?? "");
    const entries = [
      ...changes.map((change) => ({ ...change, notes: ["seen by this page"] })),
      ...policies.map(policyEntry),
    ].sort((a, b) => b.seconds - a.seconds);
    const shown = entries.slice(0, MAX_ENTRIES).map(item);
    const nothing = element("li", { class: "note" }, "Nothing has changed since the job began.");
    this.list.replaceChildren(...(shown.length ? shown : [nothing]));
    const refused = decisions.filter(({ publish }) => !publish).slice(-MAX_DECISIONS).reverse();
    this.refusals.hidden = refused.length === 0;
    this.refused.replaceChildren(...refused.map(decisionEntry).map(item));
  }

  async act(action) {
    setText(this.error, "");
    try {
      if (await action()) await this.store.reload();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setText(this.error, `${error.message}.`);
    }
  }

  async changeMode() {
    const { summary, api, name } = this.store;
    const chosen = await ask({
      title: "Change mode",
      text: `What may Libra do to ${name}? It is logged with your name.`,
      fields: [{ name: "mode", label: "Mode", value: summary.mode, options: MODES }],
      confirm: "Change mode",
    });
    return chosen && api.setMode(chosen.mode);
  }

  async publish() {
    const { summary, api, name } = this.store;
    const said = await ask({
      title: "Publish a policy",
      text:
        `Ranks of ${name} follow it from one of their next steps on. ` +
        `What is not named here stays as in policy ${summary.policy_version}.`,
      fields: [
        { name: "pooling", label: "Pooling", value: "true", options: POOLING },
        { name: "reason", label: "Reason", value: "published by hand" },
      ],
      confirm: "Publish",
    });
    return said && api.publish({ pooling: said.pooling === "true", reason: said.reason });
  }

  async rollBack() {
    const { api, name, policies } = this.store;
    const versions = { "": "the one before", 0: "0: plain Ulysses" };
    for (const { version } of policies) versions[version] = `${version}`;
    const said = await ask({
      title: "Roll back",
      text: `Bring back earlier settings for ${name}, as a new version.`,
      fields: [
        { name: "version", label: "Settings of version", options: versions },
        { name: "reason", label: "Reason" },
      ],
      confirm: "Roll back",
    });
    if (!said) return null;
    const { reason, version } = said;
    return api.rollBack(version ? { reason, to_version: Number(version) } : { reason });
  }

  canvases() {
    return [];
  }

  get sentence() {
    return this.store?.summary?.decision ?? "";
  }

  table() {
    const rows = (this.store?.policies ?? []).map((policy) => {
      const effect = policy.effect ?? {};
      return [
        policy.version, policy.first_step, policy.topic ?? "by hand", policy.reason, policy.author,
        formatDate(policy.created_s), policy.predicted_gain, effect.verdict ?? null,
        effect.skew_before ?? null, effect.skew_after ?? null, effect.step_change ?? null,
        policy.checksum,
      ];
    });
    const columns = COLUMNS.map((name) => ({ name, format: FORMATS[name] }));
    return { columns, rows, newestLast: true };
  }
}

function policyEntry(policy) {
  const { first_step: first, predicted_gain: gain } = policy;
  const notes = [
    `by ${policy.author}`,
    first === null ? "not in effect yet" : `since step ${first}`,
    ...(gain === null ? [] : [`predicted gain ${formatPercent(gain)}`]),
    effectText(policy),
    policy.pooling ? "pools on" : "pools off",
    policy.checksum,
  ];
  const label = `Policy ${policy.version}`;
  const effect = policy.effect?.verdict;
  return { label, text: policy.reason, seconds: policy.created_s, notes, effect };
}

function decisionEntry({ step, reason }) {
  const when = step === null ? [] : [`step ${step}`];
  return { label: "Kept as it was.", text: reason, seconds: 0, notes: when };
}

function item({ label, text, seconds, notes, effect }) {
  const when = seconds > 0 ? [formatDate(seconds)] : [];
  return element(
    "li",
    effect ? { "data-effect": effect } : {},
    element("p", {}, element("strong", {}, label), " ", text),
    element("p", { class: "note" }, [...when, ...notes].join(" · ")),
  );
}

customElements.define("libra-policies", PoliciesPanel);
