// Draw openapi.json as a page. Text goes in as text only, never as markup.

const METHODS = ["get", "put", "post", "delete"];

function element(tag, text, ...children) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
}

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array" && schema.items) return `array of ${typeOf(schema.items)}`;
  return schema.type ?? "any";
}

function table(head, rows) {
  const line = (tag, cells) => element("tr", "", ...cells.map((cell) => element(tag, cell)));
  return element("table", "", line("th", head), ...rows.map((cells) => line("td", cells)));
}

function route(path, method, operation) {
  const title = element("summary", "", element("code", `${method.toUpperCase()} ${path}`));
  title.append(" ", operation.summary ?? "");
  const node = element("details", "", title);
  const parameters = (operation.parameters ?? []).map((parameter) => [
    parameter.name,
    parameter.in,
    typeOf(parameter.schema),
    parameter.description ?? parameter.schema?.description ?? "",
  ]);
  if (parameters.length) node.append(table(["parameter", "in", "type", ""], parameters));
  for (const [media, { schema }] of Object.entries(operation.requestBody?.content ?? {})) {
    node.append(element("p", `Body: ${media}, ${typeOf(schema)}`));
  }
  node.append(element("p", `Answers: ${Object.keys(operation.responses ?? {}).join(", ")}`));
  return node;
}

function schema(name, definition) {
  const node = element("details", "", element("summary", "", element("code", name)));
  if (definition.description) node.append(element("p", definition.description));
  const required = new Set(definition.required ?? []);
  const rows = Object.entries(definition.properties ?? {}).map(([field, value]) => [
    field,
    typeOf(value),
    required.has(field) ? "required" : "",
  ]);
  node.append(table(["field", "type", ""], rows));
  return node;
}

async function draw() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`openapi.json answered ${response.status}`);
  const { paths, components } = await response.json();
  const sections = new Map();
  for (const [path, operations] of Object.entries(paths)) {
    for (const method of METHODS.filter((name) => name in operations)) {
      const tag = operations[method].tags?.[0] ?? "other";
      if (!sections.has(tag)) sections.set(tag, element("section", "", element("h2", tag)));
      sections.get(tag).append(route(path, method, operations[method]));
    }
  }
  document.getElementById("routes").append(...sections.values());
  const schemas = Object.entries(components?.schemas ?? {});
  document.getElementById("schemas").append(...schemas.map((entry) => schema(...entry)));
}

const status = document.getElementById("status");
draw().then(
  () => { status.hidden = true; },
  (error) => { status.textContent = `The API's description did not load: ${error.message}`; },
);
