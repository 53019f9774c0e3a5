// What is set for every question: the system prompt, the voice, and the parameters that the pipeline declares.

import { $, element } from "./dom.js";

const FIRST = ["language", "temperature", "max_tokens", "max_new_tokens", "max_completion_tokens", "top_p", "seed"]; // others are folded
const NAMES = { max_new_tokens: "Longest answer (tokens)", max_tokens: "Longest answer (tokens)", max_completion_tokens: "Longest answer (tokens)" };
const HIDDEN = new Set(["speed", "timestamps", "partial_images"]); // of a place of their own, or asked for by the page

function title(name) {
  return NAMES[name] ?? (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");
}

function settable({ type, name }) {
  return ["number", "integer", "boolean", "string"].includes(type) && !HIDDEN.has(name);
}

export class Settings {
  constructor() {
    this.values = {};
    document.addEventListener("input", (event) => event.target.dataset.name && this.read());
    $("settings-reset").addEventListener("click", () => {
      $("settings-form").querySelectorAll("input, textarea, select").forEach((each) => (each.value = each.tagName === "SELECT" ? each.options[0].value : ""));
      this.read();
    });
  }

  // Shows what a model declares.
  offer({ id, capabilities }, kind) {
    const { parameters, plain_parameters: own, voices = [] } = capabilities;
    this.kept = `omni-settings-${id}`;
    try {
      this.values = JSON.parse(localStorage.getItem(this.kept)) ?? {};
    } catch {
      this.values = {};
    }
    const plain = kind === "draw" ? capabilities.image_parameters : (parameters[own] ?? []);
    const known = plain.filter(settable);
    this.paced = Object.keys(parameters).find((name) => parameters[name].some((each) => each.name === "speed"));
    const fields = [];
    if (kind === "chat") fields.push(this.field({ name: "system", type: "text", title: "System prompt", help: "how it should answer" }));
    if (voices.length > 1 && kind !== "draw") fields.push(this.field({ name: "voice", type: "string", title: "Voice", choices: voices, help: "" }));
    if (this.paced || kind === "speak") fields.push(this.field({ name: "speed", type: "number", title: "Speed", minimum: 0.25, maximum: 4, default: 1, help: "of the speech" }));
    const [first, rest] = [[], []];
    const quick = []; // at hand beside the text, or the recording
    if (kind === "speak") quick.push(...fields.splice(0));
    for (const each of known) {
      const place = kind === "hear" && each.name === "language" ? quick : FIRST.includes(each.name) ? first : rest;
      place.push(this.field(each));
    }
    for (const [group, others] of Object.entries(kind === "hear" || kind === "draw" ? {} : parameters)) {
      const more = group === own ? [] : others.filter(settable);
      if (more.length) rest.push(element("h3", { textContent: title(group) }), ...more.map((each) => this.field({ ...each, title: title(each.name), name: `${group}.${each.name}` })));
    }
    $("quick").replaceChildren(...quick);
    $("settings-fields").replaceChildren(...fields, ...first);
    $("settings-more").hidden = !rest.length;
    $("settings-rest").replaceChildren(...rest);
    $("settings").hidden = !(fields.length + first.length + rest.length);
  }

  field({ name, type, help, title: label = title(name), choices = [], ...bounds }) {
    const value = this.values[name];
    let input;
    if (choices.length || type === "boolean") {
      const offered = choices.length ? choices : ["true", "false"];
      input = element("select", {}, ...(name === "voice" ? [] : [new Option("automatic", "")]), ...offered.map((each) => new Option(each)));
      input.value = value ?? input.options[0].value;
      if (input.selectedIndex < 0) input.selectedIndex = 0;
    } else if (type === "text") input = element("textarea", { rows: 3, dir: "auto", value: value ?? "" });
    else {
      input = element("input", { type: type === "string" ? "text" : "number", value: value ?? "", placeholder: bounds.default ?? "" });
      if (bounds.minimum !== undefined) input.min = bounds.minimum;
      if (bounds.maximum !== undefined) input.max = bounds.maximum;
      input.step = type === "integer" ? "1" : "any";
    }
    input.id = `set-${name}`;
    input.dataset.name = name;
    input.dataset.type = type;
    const most = bounds.maximum < 1e6 ? bounds.maximum : undefined;
    const range = bounds.minimum === undefined || type === "text" ? "" : most === undefined ? `${bounds.minimum} or more` : `${bounds.minimum} to ${most}`;
    const told = element("span", { className: "note", textContent: [help, range].filter(Boolean).join(", ") });
    return element("div", { className: "field" }, element("label", { htmlFor: input.id }, label, " ", told), input);
  }

  read() {
    this.values = {};
    for (const input of document.querySelectorAll("[data-name]")) {
      const { name, type } = input.dataset;
      if (input.value === "" || !input.checkValidity()) continue;
      this.values[name] = type === "boolean" ? input.value === "true" : ["number", "integer"].includes(type) ? Number(input.value) : input.value;
    }
    localStorage.setItem(this.kept, JSON.stringify(this.values));
  }

  // Parameters for the API, under the pipeline's names; those of other stages by group.
  get parameters() {
    const { system, voice, speed, ...rest } = this.values;
    const found = {};
    for (const [name, value] of Object.entries(rest)) {
      const [group, own] = name.split(".");
      if (own) ((found.stage_sampling ??= {})[group] ??= {})[own] = value;
      else found[name] = value;
    }
    return found;
  }

  get speed() {
    return this.values.speed ?? 1;
  }
}
