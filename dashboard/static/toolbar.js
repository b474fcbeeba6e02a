// What applies to the whole page of a job: which steps are looked at, comparing, and the report.

import { button, element } from "./dom.js";
import { saveReport } from "./report.js";
import { pageUrl, view } from "./view.js";

function stepInput(id, label) {
  const attributes = { id, type: "number", min: "0", step: "1", inputmode: "numeric" };
  return element("input", { ...attributes, "aria-label": label });
}

export function toolbar(store) {
  const from = stepInput("from-step", "First step to show");
  const to = stepInput("to-step", "Last step to show");
  const all = button("All steps", () => { view.window = null; }, { id: "all-steps" });
  const state = element("span", { class: "note", id: "window-note", role: "status" });
  const form = element(
    "form",
    { class: "window", "aria-label": "Steps to show" },
    element("label", { for: "from-step" }, "Steps"),
    from,
    "to",
    to,
    element("button", { type: "submit" }, "Zoom"),
    all,
    state,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const [first, last] = [from, to].map(({ value }) => (value === "" ? null : Number(value)));
    const newest = store.history.last?.step ?? 0;
    view.window = { from: first ?? 0, to: last ?? Math.max(newest, first ?? 0) };
  });
  const show = () => {
    const { window } = view;
    from.value = window?.from ?? "";
    to.value = window?.to ?? "";
    all.disabled = !window;
    const zoomed = window && `zoomed: ${window.to - window.from + 1} steps, newer ones are not shown`;
    state.textContent = zoomed || "all of the newest steps, live";
  };
  view.addEventListener("change", show);
  show();
  const both = pageUrl({ a: store.name, b: store.name });
  const compare = element("a", { id: "compare-link", href: both }, "Compare");
  view.addEventListener("change", () => {
    const { window } = view;
    const own = window ? `${store.name}~${window.from}-${window.to}` : store.name;
    compare.setAttribute("href", pageUrl({ a: own, b: store.name }));
  });
  const report = button("Save report", () => saveReport(store), { id: "report-button" });
  const spring = element("span", { class: "spring" });
  return element("div", { class: "toolbar top" }, form, spring, compare, report);
}
