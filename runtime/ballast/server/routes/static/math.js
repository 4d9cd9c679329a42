// Formulas as KaTeX draws them: nodes with MathML for screen readers, and no text read as HTML. What KaTeX refuses, or
// has no name for, is shown as it was written.

import "./vendor/katex.js"; // a script of the older form: it sets globalThis.katex

const LONGEST = 4000; // characters of one formula
const OPTIONS = {
  throwOnError: true,
  strict: "ignore",
  errorColor: "currentColor", // of commands that are not trusted, which are shown by their names
  trust: false, // no links, pictures, classes or styles of the model's choice
  maxSize: 20, // em
  maxExpand: 200,
};

// Extensions of marked's lexer: \[…\] and $$…$$ apart from the text, \(…\) and $…$ within it.
export const extensions = [
  {
    name: "formula",
    level: "block",
    start: (text) => text.match(/(?<=\n) {0,3}(?:\$\$|\\\[)/)?.index,
    tokenizer(text) {
      const found = /^ {0,3}(?:\$\$([^]{1,4000}?)\$\$|\\\[([^]{1,4000}?)\\\])[ \t]*(?:\n+|$)/.exec(text);
      if (found) return { type: "formula", raw: found[0], text: found[1] ?? found[2], apart: true };
    },
  },
  {
    name: "formulaWithin",
    level: "inline",
    start: (text) => text.search(/\$|\\\(|\\\[/),
    tokenizer(text) {
      // A dollar sign is often money: no blank inside, and no digit behind, as pandoc has it.
      const found =
        /^(?:\$\$([^$]{1,4000}?)\$\$|\\\[([^]{1,4000}?)\\\])/.exec(text) ??
        /^(?:\\\(([^]{1,4000}?)\\\)|\$(?![\s$])((?:\\[^]|[^\\$\n]){0,4000}?[^\s\\$])\$(?!\d))/.exec(text);
      if (!found) return undefined;
      const apart = /^(?:\$\$|\\\[)/.test(found[0]);
      return { type: "formula", raw: found[0], text: found[1] ?? found[2], apart };
    },
  },
];

export function formula(token) {
  const made = document.createElement(token.apart ? "div" : "span");
  try {
    if (token.text.length > LONGEST) throw new RangeError("too long");
    made.append(drawn(token.text, token.apart));
    made.className = token.apart ? "formula scrolling" : "formula";
    if (token.apart) made.tabIndex = 0; // it scrolls by itself
  } catch {
    made.textContent = token.raw.trim();
  }
  return made;
}

function drawn(text, displayMode) {
  const tree = globalThis.katex.__renderToDomTree(text, { ...OPTIONS, displayMode });
  const parts = [tree];
  while (parts.length) {
    const part = parts.pop();
    // The page's policy refuses styles that are attributes; KaTeX writes a few on MathML, which is not what is seen.
    if (part.attributes) delete part.attributes.style;
    parts.push(...(part.children ?? []));
  }
  return tree.toNode();
}
