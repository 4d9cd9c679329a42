// Markdown as nodes of the page. Texts become text nodes and attributes are set one by one: nothing that a model writes
// is ever read as HTML, and no picture or other file is loaded because of it.

import { copyButton, element, scrolling } from "./elements.js";
import { extensions, formula } from "./math.js";
import hljs from "./vendor/highlight.js";
import { Marked } from "./vendor/marked.js";

const marked = new Marked({ gfm: true, breaks: true, extensions });

const LONGEST_HIGHLIGHTED = 50_000; // characters of a block of code
const LINKS = new Set(["http:", "https:", "mailto:"]);
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };

// Renders growing text below `place`; unchanged blocks are not drawn again.
export class Markdown {
  constructor(place) {
    this.place = place;
    this.blocks = []; // raw texts of what is drawn
    this.links = "{}"; // names that stand for addresses
  }

  draw(text) {
    const tokens = marked.lexer(text);
    const links = JSON.stringify(tokens.links);
    if (links !== this.links) this.clear(); // a name that was defined late makes links of texts before it
    this.links = links;
    const drawn = tokens.filter((token) => token.type !== "space" && token.type !== "def");
    let same = 0;
    while (same < this.blocks.length && same < drawn.length && this.blocks[same] === drawn[same].raw) same += 1;
    while (this.place.childNodes.length > same) this.place.lastChild.remove();
    this.place.append(...drawn.slice(same).map(node));
    this.blocks = drawn.map((token) => token.raw);
  }

  clear() {
    this.place.replaceChildren();
    this.blocks = [];
  }
}

const nodes = (tokens) => (tokens ?? []).map(node);

function node(token) {
  switch (token.type) {
    case "heading":
      return element(`h${Math.min(6, token.depth + 2)}`, nodes(token.tokens)); // the page's own are h1 and h2
    case "paragraph":
      return element("p", nodes(token.tokens));
    case "blockquote":
      return element("blockquote", nodes(token.tokens));
    case "list":
      return list(token);
    case "table":
      return table(token);
    case "code":
      return code(token);
    case "hr":
      return element("hr");
    case "br":
      return element("br");
    case "strong":
    case "em":
    case "del":
      return element(token.type, nodes(token.tokens));
    case "codespan":
      return element("code", [token.text]);
    case "formula":
      return formula(token);
    case "link":
    case "image":
      return link(token);
    case "checkbox":
      return document.createTextNode(token.checked ? "☑ " : "☐ ");
    case "text":
      return token.tokens ? element("span", nodes(token.tokens)) : document.createTextNode(decoded(token.text));
    default: // HTML among others, as it was written
      return document.createTextNode(token.text ?? token.raw);
  }
}

function decoded(text) {
  return text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (_, name) => ENTITIES[name]);
}

function list(token) {
  const made = element(token.ordered ? "ol" : "ul", token.items.map((item) => element("li", nodes(item.tokens))));
  if (token.ordered && token.start > 1) made.start = token.start;
  return made;
}

function table(token) {
  const row = (cells, tag) =>
    element("tr", cells.map((cell) => element(tag, nodes(cell.tokens), cell.align ? `to-${cell.align}` : "")));
  const made = element("table", [
    element("thead", [row(token.header, "th")]),
    element("tbody", token.rows.map((cells) => row(cells, "td"))),
  ]);
  return scrolling(made, "Table");
}

function link(token) {
  const shown = token.type === "image" ? [token.text || token.href] : nodes(token.tokens);
  const url = URL.canParse(token.href) ? new URL(token.href) : null;
  if (!url || !LINKS.has(url.protocol)) return element("span", shown);
  const made = element("a", shown);
  made.href = url.href;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  return made;
}

function code(token) {
  const language = (token.lang ?? "").split(/\s/)[0];
  const head = element("div", [element("span", [language || "text"]), copyButton(() => token.text)], "code-head");
  const body = element("code", highlighted(token.text, language.toLowerCase()));
  return element("div", [head, scrolling(element("pre", [body]), "Code")], "code");
}

export function highlighted(text, language) {
  if (text.length > LONGEST_HIGHLIGHTED || !hljs.getLanguage(language)) return [text];
  const { rootNode } = hljs.highlight(text, { language, ignoreIllegals: true })._emitter;
  return rootNode.children.map(scope);
}

function scope(part) {
  if (typeof part === "string") return document.createTextNode(part);
  const children = part.children.map(scope);
  return element("span", children, part.scope ? `hl-${part.scope.split(".")[0].replaceAll(/[^\w-]/g, "")}` : "");
}
