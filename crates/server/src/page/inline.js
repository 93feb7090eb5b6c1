// Inline Markdown of untrusted text: emphasis, code spans, links. One pass, linear, and what is not understood stays text.

import { h } from "./dom.js";

const TOKEN = /\\[([]|\\[!-/:-@[-`{-~]|`+|\$\$|[*_]+|~~|!?\[|\]|<(?:https?:\/\/|mailto:)[^\s<>]+>|https?:\/\/[^\s<>`\]]+|<br ?\/?>|\n/g;
const DESTINATION = /\((<[^<>\n]{0,2000}>|[^\s()]{0,2000}(?:\([^\s()]{0,500}\)[^\s()]{0,500}){0,5})(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?\s*\)/y;
const MATH = { "\\(": "\\)", "\\[": "\\]", $$: "$$" };
const TAGS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "s" };
const MAX_DEPTH = 12;
const WORD = /[\p{L}\p{N}]/u;

/** The nodes of a piece of inline Markdown. */
export function inline(text) {
  return new Inline(text).run();
}

/** An address that may be linked to, or null: scripts, data and relative addresses never are. */
export function safeAddress(text) {
  if (!URL.canParse(text)) return null;
  const url = new URL(text);
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.stack = [{ mark: "", nodes: [] }];
    this.unclosed = new Set();
  }

  run() {
    for (;;) {
      TOKEN.lastIndex = this.at;
      const match = TOKEN.exec(this.text);
      if (!match) break;
      this.add(this.text.slice(this.at, match.index));
      this.at = TOKEN.lastIndex;
      this.token(match[0], match.index);
    }
    this.add(this.text.slice(this.at));
    this.flatten(0);
    return this.stack[0].nodes;
  }

  token(token, start) {
    if (token in MATH) this.verbatim(token, MATH[token], "math", start);
    else if (token[0] === "\\") this.add(token[1]);
    else if (token[0] === "`") this.verbatim(token, token, undefined, start);
    else if (token === "\n" || token.startsWith("<br")) this.add(h("br"));
    else if (token.endsWith("[")) this.open(token);
    else if (token === "]") this.link();
    else if (token[0] === "h") this.autolink(token);
    else if (token[0] === "<") this.address(token.slice(1, -1), token);
    else this.emphasis(token, start);
  }

  add(node) {
    const { nodes } = this.stack.at(-1);
    if (typeof node !== "string") nodes.push(node);
    else if (typeof nodes.at(-1) === "string") nodes[nodes.length - 1] += node;
    else if (node) nodes.push(node);
  }

  // Code and formulas: nothing inside is Markdown. Formulas are shown as they were written.
  verbatim(open, close, kind, start) {
    const end = this.unclosed.has(open) ? -1 : this.closing(close);
    if (end < 0) {
      this.unclosed.add(open);
      this.add(open);
      return;
    }
    let body = this.text.slice(this.at, end).replaceAll("\n", " ");
    if (!kind && body.length > 2 && body.startsWith(" ") && body.endsWith(" ")) body = body.slice(1, -1);
    this.at = end + close.length;
    this.add(h("code", { class: kind }, kind ? this.text.slice(start, this.at) : body));
  }

  closing(mark) {
    if (mark[0] !== "`") return this.text.indexOf(mark, this.at);
    const runs = /`+/g;
    runs.lastIndex = this.at;
    for (let run = runs.exec(this.text); run; run = runs.exec(this.text)) {
      if (run[0].length === mark.length) return run.index;
    }
    return -1;
  }

  open(mark) {
    if (this.stack.length > MAX_DEPTH) this.add(mark);
    else this.stack.push({ mark, nodes: [] });
  }

  // Opened marks above `depth` that were never closed are text.
  flatten(depth) {
    while (this.stack.length - 1 > depth) {
      const { mark, nodes } = this.stack.pop();
      this.add(mark);
      for (const node of nodes) this.add(node);
    }
  }

  innermost(test) {
    for (let depth = this.stack.length - 1; depth > 0; depth--) {
      if (test(this.stack[depth].mark)) return depth;
    }
    return 0;
  }

  emphasis(run, start) {
    const before = this.text[start - 1] ?? " ";
    const after = this.text[this.at] ?? " ";
    const inWord = run[0] === "_" && WORD.test(before) && WORD.test(after);
    const closes = !inWord && before.trim() !== "";
    const opens = !inWord && after.trim() !== "";
    let left = run.length;
    while (left > 0) {
      const depth = closes ? this.innermost((mark) => mark in TAGS && mark[0] === run[0] && mark.length <= left) : 0;
      if (depth) left -= this.close(depth);
      else if (opens && this.stack.length <= MAX_DEPTH) left -= this.begin(run[0].repeat(Math.min(left, 2)));
      else break;
    }
    this.add(run[0].repeat(left));
  }

  begin(mark) {
    this.stack.push({ mark, nodes: [] });
    return mark.length;
  }

  close(depth) {
    this.flatten(depth);
    const { mark, nodes } = this.stack.pop();
    this.add(h(TAGS[mark], {}, nodes));
    return mark.length;
  }

  link() {
    const depth = this.innermost((mark) => mark.endsWith("["));
    DESTINATION.lastIndex = this.at;
    const match = depth && DESTINATION.exec(this.text);
    const address = match && safeAddress(match[1].replace(/^<(.*)>$/s, "$1"));
    if (depth) this.flatten(address ? depth : depth - 1);
    if (!address) return this.add("]");
    this.at = DESTINATION.lastIndex;
    const { mark, nodes } = this.stack.pop();
    const link = anchor(address, mark === "![" && "image: ", nodes);
    for (const inner of link.querySelectorAll("a")) inner.replaceWith(...inner.childNodes);
    this.add(link);
  }

  autolink(token) {
    let address = token.replace(/[.,:;!?'"*_~]+$/, "");
    if (address.endsWith(")") && !address.includes("(")) address = address.slice(0, -1);
    this.at -= token.length - address.length;
    this.address(address, address);
  }

  address(address, text) {
    const safe = safeAddress(address);
    this.add(safe ? anchor(safe, address) : text);
  }
}

function anchor(href, ...children) {
  return h("a", { href, title: href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}
