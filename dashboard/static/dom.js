// The few DOM helpers that every part of the page uses; text goes in as text, never as markup.

export function byId(id) {
  return document.getElementById(id);
}

// element("td", {class: "number"}, "1.04"): children are nodes or plain text.
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

// Leaving equal text alone keeps selections and screen readers undisturbed.
export function setText(node, text) {
  if (node.textContent !== String(text)) node.textContent = text;
}

// A section shows its body only when ready; otherwise one sentence says why not.
export function setState(section, state, sentence = "") {
  section.dataset.state = state;
  section.setAttribute("aria-busy", String(state === "loading"));
  setText(section.querySelector(".state"), sentence);
}

// Readouts change with each step. They are spoken only while their chart is being explored.
export function speakWhileFocused(control, readout) {
  readout.setAttribute("aria-live", "off");
  control.addEventListener("focus", () => readout.setAttribute("aria-live", "polite"));
  control.addEventListener("blur", () => readout.setAttribute("aria-live", "off"));
}

// The notice stands in for all sections when there is no job to show.
export function showNotice(title, sentence) {
  setText(byId("notice-title"), title);
  setText(byId("notice-text"), sentence);
  byId("notice").hidden = false;
  byId("content").hidden = true;
}

export function showContent() {
  byId("notice").hidden = true;
  byId("content").hidden = false;
}
