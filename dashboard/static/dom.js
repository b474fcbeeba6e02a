// The few DOM helpers that every part of the page uses; text goes in as text, never as markup.

export function byId(id) {
  return document.getElementById(id);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

// element("td", {class: "number"}, "1.04"): children are nodes or plain text.
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// A copy of what a template of the page holds.
export function copyOf(id) {
  return byId(id).content.firstElementChild.cloneNode(true);
}

export function button(label, onClick, attributes = {}) {
  const node = element("button", { type: "button", ...attributes }, label);
  node.addEventListener("click", onClick);
  return node;
}

export const numberCell = (text) => element("td", { class: "number" }, text);

export const numberHead = (text, scope = "col") => element("th", { scope, class: "number" }, text);

// A box that scrolls can be scrolled by keyboard, too, and says what is in it.
export function scrollBox(label, ...children) {
  const attributes = { class: "scroll", tabindex: "0", role: "region", "aria-label": label };
  return element("div", attributes, ...children);
}

// Where a chart over steps goes; `readout` is the id of what tells its figures.
export function chartBox(id, label, readout) {
  const described = readout ? { "aria-describedby": readout } : {};
  return element("div", {
    id,
    class: "chart",
    tabindex: "0",
    role: "application",
    "aria-roledescription": "line chart",
    "aria-label": `${label}; arrow keys move along steps`,
    ...described,
  });
}

// options: {value: text}.
export function choice(options, attributes = {}) {
  const items = Object.entries(options).map(([value, text]) => element("option", { value }, text));
  return element("select", attributes, ...items);
}

// What the lines of a chart are: {class of the line: what it is}.
export function key(lines) {
  const items = Object.entries(lines).map(([name, text]) =>
    element("li", {}, element("span", { class: `line ${name}`, "aria-hidden": "true" }), text),
  );
  return element("ul", { class: "key" }, ...items);
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
