// Shows the server's description of its API. Everything it loads comes from the server itself.

import { getJson, keepKey } from "./api.js";

const METHODS = ["get", "post", "put", "patch", "delete"];

const at = (id) => document.getElementById(id);

function node(name, text = "", children = [], className = "") {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (className) made.className = className;
  made.append(...children);
  return made;
}

// Returns a schema's type in a few words.
function typeOf(schema) {
  if (schema === true || !schema || !Object.keys(schema).length) return "any";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const several = schema.anyOf || schema.oneOf || schema.allOf;
  if (several) return several.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
  return [schema.type, schema.format].filter(Boolean).join(", ") || "any";
}

// Returns links to the schemas that a schema names.
function references(schema) {
  const found = new Set(JSON.stringify(schema).match(/#\/components\/schemas\/[\w.-]+/g) || []);
  return [...found].flatMap((each) => {
    const link = node("a", each.split("/").pop());
    link.href = `#schema-${each.split("/").pop()}`;
    return [" ", link];
  });
}

function fields(schema) {
  const required = schema.required || [];
  const rows = Object.entries(schema.properties || {}).map(([name, each]) => {
    const facts = [
      required.includes(name) ? "required" : "",
      each.default !== undefined && each.default !== null ? `default ${JSON.stringify(each.default)}` : "",
      each.description || "",
    ];
    const type = node("td", "", [node("code", typeOf(each)), ...references(each)]);
    return node("tr", "", [node("td", "", [node("code", name)]), type, node("td", facts.filter(Boolean).join("; "))]);
  });
  return rows.length ? node("table", "", rows) : node("pre", JSON.stringify(schema, null, 2));
}

function operation(path, method, each, shared) {
  const title = [node("span", method.toUpperCase(), [], "method"), node("code", path), " "];
  const parts = [node("summary", "", [...title, node("span", each.summary || "", [], "faint")])];
  if (each.description) parts.push(node("p", each.description));
  parts.push(node("p", each.security && !each.security.length ? "Needs no key." : "", [], "faint"));
  const parameters = [...shared, ...(each.parameters || [])];
  if (parameters.length) {
    const properties = Object.fromEntries(
      parameters.map((one) => [one.name, { ...one.schema, description: `in the ${one.in}` }]),
    );
    const required = parameters.filter((one) => one.required).map((one) => one.name);
    parts.push(fields({ properties, required }));
  }
  for (const [type, body] of Object.entries((each.requestBody || {}).content || {})) {
    const schema = body.schema || {};
    parts.push(node("p", `Body (${type}):`, references(schema)));
    if (!schema.$ref) parts.push(fields(schema));
  }
  return node("details", "", parts);
}

function show(api) {
  at("title").textContent = `${api.info.title} ${api.info.version}`;
  at("summary").textContent = api.info.summary || "";
  const groups = new Map();
  for (const [path, operations] of Object.entries(api.paths)) {
    for (const method of METHODS.filter((each) => operations[each])) {
      const each = operations[method];
      const tag = (each.tags || ["other"])[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(path, method, each, operations.parameters || []));
    }
  }
  at("operations").replaceChildren(...[...groups].flatMap(([tag, found]) => [node("h2", tag), ...found]));
  const schemas = Object.entries((api.components || {}).schemas || {}).map(([name, schema]) => {
    const about = schema.description ? [node("p", schema.description)] : [];
    const made = node("details", "", [node("summary", "", [node("code", name)]), ...about, fields(schema)]);
    made.id = `schema-${name}`;
    return made;
  });
  at("schemas").replaceChildren(node("h2", "Schemas"), ...schemas);
  openNamed();
}

// Opens the schema that a link leads to.
function openNamed() {
  const named = location.hash && at(decodeURIComponent(location.hash.slice(1)));
  if (named) {
    named.open = true;
    named.scrollIntoView();
  }
}

async function load() {
  at("problem").textContent = "";
  try {
    show(await getJson("openapi.json"));
    at("key-form").hidden = true;
  } catch (error) {
    at("key-form").hidden = ![401, 403].includes(error.status);
    at("problem").textContent = error.message;
  }
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(at("key").value.trim());
  load();
});
addEventListener("hashchange", openNamed);
load();
