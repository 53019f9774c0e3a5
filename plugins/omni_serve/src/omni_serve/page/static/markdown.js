// Shows Markdown. `marked` reads it; every element is made here, and no text is ever read as HTML.

import { lexer } from "./marked.esm.js";
import { copyText, done, element, iconButton } from "./dom.js";

const LONGEST = 60_000; // characters; more is shown as it is
const LINKS = new Set(["http:", "https:", "mailto:"]);

function inline(tokens = []) {
  return tokens.flatMap((token) => {
    switch (token.type) {
      case "strong":
      case "em":
      case "del":
        return [element(token.type, {}, ...inline(token.tokens))];
      case "codespan":
        return [element("code", { textContent: token.text })];
      case "br":
        return [element("br")];
      case "link":
        return [link(token)];
      case "image":
        return [link({ ...token, tokens: [{ type: "text", text: token.text || token.href }] })]; // nothing is fetched from elsewhere
      case "checkbox":
        return [token.checked ? "☑ " : "☐ "];
      case "escape":
        return [token.text];
      default:
        return token.tokens ? inline(token.tokens) : [plain(token)];
    }
  });
}

// The lexer leaves entities as they are written.
function plain(token) {
  const named = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
  const meant = (name) => (Object.hasOwn(named, name) ? named[name] : `&${name};`);
  return (token.type === "html" ? token.raw : token.text ?? token.raw).replace(/&(?:#(\d{1,6})|(\w+));/g, (_, code, name) =>
    code ? String.fromCodePoint(Number(code)) : meant(name),
  );
}

function link({ href, title, tokens }) {
  const inside = inline(tokens);
  let safe = false;
  try {
    safe = LINKS.has(new URL(href).protocol);
  } catch {
    // A relative address: of a model it means nothing.
  }
  return safe ? element("a", { href, title: title || "", target: "_blank", rel: "noopener noreferrer" }, ...inside) : element("span", {}, ...inside);
}

function code({ text, lang }) {
  const copy = iconButton("copy", "Copy the code", async (button) => {
    await copyText(text);
    done(button, "copy", "Copy the code");
  });
  const head = element("div", { className: "code-head" }, element("span", { textContent: lang || "code" }), copy);
  const lines = element("pre", { tabIndex: 0 }, element("code", { textContent: text }));
  return element("div", { className: "code" }, head, lines);
}

function list(token) {
  const items = token.items.map((item) => element("li", {}, ...item.tokens.flatMap((each) => (each.type === "text" || each.type === "checkbox" ? inline([each]) : block(each)))));
  const made = element(token.ordered ? "ol" : "ul", { dir: "auto" }, ...items);
  if (token.ordered && token.start > 1) made.start = token.start;
  return made;
}

function table({ header, rows, align }) {
  const row = (cells, name) =>
    element("tr", {}, ...cells.map((cell, index) => element(name, { className: align[index] || "" }, ...inline(cell.tokens))));
  const head = element("thead", {}, row(header, "th"));
  const made = element("table", {}, head, element("tbody", {}, ...rows.map((cells) => row(cells, "td"))));
  return element("div", { className: "table", tabIndex: 0, dir: "auto" }, made);
}

function block(token) {
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "heading":
      return [element(token.level ? `h${token.level}` : "p", { className: `heading size${token.depth}`, dir: "auto" }, ...inline(token.tokens))];
    case "code":
      return [code(token)];
    case "list":
      return [list(token)];
    case "table":
      return [table(token)];
    case "blockquote":
      return [element("blockquote", { dir: "auto" }, ...token.tokens.flatMap(block))];
    case "hr":
      return [element("hr")];
    case "html":
      return [element("p", { dir: "auto", textContent: token.raw.trim() })];
    default:
      return [element("p", { dir: "auto" }, ...inline(token.tokens ?? [token]))];
  }
}

// Keeps an element showing a text that grows: blocks that have not changed stay, with what is selected in them.
export class Markdown {
  // shown: called after each change.
  constructor(place, shown = () => {}) {
    this.place = place;
    this.changed = shown;
    this.text = "";
    this.shown = [];
    this.took = 0; // ms, the last time
  }

  // The longer the text takes to read, the more of it is read at once.
  add(piece) {
    this.text += piece;
    this.waiting ||= setTimeout(() => this.show(), Math.max(16, 5 * this.took));
  }

  show() {
    clearTimeout(this.waiting);
    this.waiting = null;
    const begun = performance.now();
    try {
      if (this.text.length > LONGEST) throw new RangeError("too long");
      this.blocks();
    } catch {
      this.shown = []; // too long, or nested too deep to be read
      this.place.replaceChildren(element("p", { className: "plain", dir: "auto", textContent: this.text }));
    }
    this.took = performance.now() - begun;
    this.changed();
  }

  blocks() {
    const blocks = lexer(this.text, { gfm: true, breaks: true }).filter((each) => each.type !== "space");
    let level = 1; // of the page itself; those who listen must not miss a level in between
    for (const each of blocks) if (each.type === "heading") each.level = level = Math.min(each.depth + 1, level + 1, 6);
    let same = 0;
    while (same < this.shown.length && same < blocks.length && this.shown[same] === blocks[same].raw) same++;
    const made = blocks.slice(same).map((each) => element("div", { className: "block" }, ...block(each)));
    while (this.place.children.length > same) this.place.lastChild.remove();
    this.place.append(...made);
    this.shown = blocks.map((each) => each.raw);
  }
}
