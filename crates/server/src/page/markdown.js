// Block Markdown of untrusted text. `Markdown` shows a text that grows: only the blocks that changed are built anew.

import { CodeBlock } from "./code.js";
import { h } from "./dom.js";
import { inline } from "./inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,9})([-*+]|\d{1,9}[.)])( {1,4}|$)/;
const MAX_DEPTH = 8;

/** A view of a growing text. */
export class Markdown {
  constructor() {
    this.element = h("div", { class: "markdown" });
    this.shown = [];
  }

  update(text) {
    const blocks = split(text.split("\n"), 0);
    const same = this.shown.findIndex((block, at) => block.source !== blocks[at]?.source || block.kind !== blocks[at].kind);
    const keep = same < 0 ? this.shown.length : same;
    const grown = this.grow(this.shown[keep], blocks[keep]) ? keep + 1 : keep;
    for (const block of this.shown.splice(grown)) block.node.remove();
    for (const block of blocks.slice(grown)) {
      block.node = render(block, 0);
      this.element.append(block.node);
      this.shown.push(block);
    }
  }

  // Code that goes on keeps its element, so that its button can be pressed and its text selected meanwhile.
  grow(old, block) {
    if (old?.kind !== "code" || block?.kind !== "code" || old.language !== block.language) return false;
    old.view.update(block.body, block.closed);
    Object.assign(old, { source: block.source, body: block.body, closed: block.closed });
    return true;
  }
}

/** Cuts lines into blocks `{kind, source, …}`. Quotes and list items are cut when they are rendered. */
function split(lines, depth) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (lines[at].trim() === "") {
      at++;
      continue;
    }
    const block = readBlock(lines, at, depth);
    block.source = lines.slice(at, block.end).join("\n");
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

function readBlock(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return readCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", level: heading[1].length, body: trimHashes(heading[2]), end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (depth < MAX_DEPTH && QUOTE.test(line)) return readQuote(lines, at);
  if (depth < MAX_DEPTH && ITEM.test(line)) return readList(lines, at);
  if (startsTable(lines, at)) return readTable(lines, at);
  return readParagraph(lines, at, depth);
}

function readCode(lines, at, [, mark, info]) {
  const indent = lines[at].indexOf(mark[0]);
  const closes = (line) => {
    const text = line.trim();
    return text.length >= mark.length && text === mark[0].repeat(text.length);
  };
  let end = at + 1;
  while (end < lines.length && !closes(lines[end])) end++;
  const body = lines.slice(at + 1, end).map((line) => outdent(line, indent)).join("\n");
  const closed = end < lines.length;
  return { kind: "code", language: info.trim().split(/\s/)[0], body, closed, end: closed ? end + 1 : end };
}

function readQuote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  return { kind: "quote", lines: lines.slice(at, end).map((line) => line.replace(QUOTE, "")), end };
}

function readList(lines, at) {
  const [, , first] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first);
  const items = [];
  let loose = false;
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || RULE.test(lines[end]) || /\d/.test(item[2]) !== ordered) break;
    const next = readItem(lines, end, item);
    items.push(next.lines);
    loose ||= next.loose;
    end = next.end;
  }
  return { kind: "list", ordered, start: parseInt(first, 10), items, loose, end };
}

function readItem(lines, at, item) {
  const least = item[1].length + 2;
  const body = [lines[at].slice(item[0].length)];
  let end = at + 1;
  let blank = 0;
  let loose = false;
  let indent;
  for (; end < lines.length; end++) {
    const line = lines[end];
    if (line.trim() === "") {
      blank++;
      continue;
    }
    const inside = leading(line) >= least;
    if (!inside && (blank || startsBlock(line))) break;
    if (inside) indent ??= Math.min(leading(line), item[0].length);
    loose ||= blank > 0;
    for (; blank > 0; blank--) body.push("");
    body.push(outdent(line, indent ?? least));
  }
  loose ||= blank > 0 && end < lines.length && ITEM.test(lines[end]);
  return { lines: body, loose, end };
}

function startsTable(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !lines[at + 1].includes("-")) return false;
  const rule = cells(lines[at + 1]);
  return rule.length === cells(lines[at]).length && rule.every((cell) => /^:?-+:?$/.test(cell));
}

function readTable(lines, at) {
  const align = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "end") : undefined));
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end++;
  return { kind: "table", align, head: cells(lines[at]), rows: lines.slice(at + 2, end).map(cells), end };
}

function cells(line) {
  const parts = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/);
  return parts.map((part) => part.trim().replaceAll("\\|", "|"));
}

function readParagraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !(depth < MAX_DEPTH && startsBlock(lines[end])) && !startsTable(lines, end)) end++;
  return { kind: "paragraph", body: lines.slice(at, end).map((line) => line.trim()).join("\n"), end };
}

function startsBlock(line) {
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
}

const leading = (line) => line.length - line.trimStart().length;
const outdent = (line, indent) => line.slice(Math.min(indent, leading(line)));

function trimHashes(text) {
  const trimmed = text.trimEnd();
  let end = trimmed.length;
  while (trimmed[end - 1] === "#") end--;
  return end === 0 || /\s/.test(trimmed[end - 1] ?? "") ? trimmed.slice(0, end).trim() : trimmed.trim();
}

function render(block, depth) {
  return RENDER[block.kind](block, depth);
}

function children(lines, depth, tight) {
  const blocks = split(lines, depth);
  return blocks.flatMap((block) => (tight && block.kind === "paragraph" ? inline(block.body) : [render(block, depth)]));
}

const RENDER = {
  // The page has an h1 of its own, so an answer's headings start at h2.
  heading: ({ level, body }) => h(`h${Math.min(level + 1, 6)}`, {}, inline(body)),
  paragraph: ({ body }) => h("p", {}, inline(body)),
  rule: () => h("hr"),
  quote: ({ lines }, depth) => h("blockquote", {}, children(lines, depth + 1, false)),
  list: ({ ordered, start, items, loose }, depth) =>
    h(ordered ? "ol" : "ul", { start: ordered && start !== 1 ? start : undefined }, items.map((lines) => item(lines, depth + 1, loose))),
  table: ({ align, head, rows }) => {
    const row = (tag, texts) => h("tr", {}, head.map((_, at) => h(tag, { class: align[at] }, inline(texts[at] ?? ""))));
    const body = h("tbody", {}, rows.map((texts) => row("td", texts)));
    return h("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Table" }, h("table", {}, h("thead", {}, row("th", head)), body));
  },
  code: (block) => {
    block.view = new CodeBlock(block.language);
    block.view.update(block.body, block.closed);
    return block.view.element;
  },
};

function item(lines, depth, loose) {
  const task = /^\[([ xX])\] /.exec(lines[0]);
  if (!task) return h("li", {}, children(lines, depth, !loose));
  const box = h("input", { type: "checkbox", disabled: true, checked: task[1] !== " " });
  return h("li", { class: "task" }, box, children([lines[0].slice(4)].concat(lines.slice(1)), depth, !loose));
}
