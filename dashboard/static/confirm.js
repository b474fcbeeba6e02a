// Ask before something is done that others will feel.

import { button, choice, element } from "./dom.js";

// Resolves with {field: value} of the form's fields, or null if the reader thinks better of it.
// fields: [{name, label, value?, options?}].
export function ask({ title, text, fields = [], confirm }) {
  const inputs = fields.map(field);
  const form = element("form", { method: "dialog" });
  const dialog = element("dialog", { "aria-labelledby": "confirm-title" }, form);
  const cancel = button("Cancel", () => dialog.close());
  const go = element("button", { type: "submit", value: "go", class: "primary" }, confirm);
  form.append(
    element("h2", { id: "confirm-title" }, title),
    element("p", {}, text),
    ...inputs.map(({ node }) => node),
    element("p", { class: "choices" }, cancel, go),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const values = Object.fromEntries(inputs.map(({ name, input }) => [name, input.value]));
      resolve(dialog.returnValue === "go" ? values : null);
      dialog.remove();
    });
  });
}

function field({ name, label, value = "", options }) {
  const input = options
    ? choice(options, { name })
    : element("input", { name, maxlength: "1000", autocomplete: "off" });
  input.value = value;
  return { name, input, node: element("label", { class: "field" }, label, input) };
}
