// A block of code: its language, a copy button, and quiet colours from one small scanner for all languages.

import { appendAll, copyButton, h } from "./dom.js";

const MAX_COLOURED = 30_000;
const words = (text) => new Set(text.split(" "));
const WORDS = words(
  "abstract as async await auto begin bool break case catch char class const constexpr continue crate def default defer del do double done " +
    "elif else elsif end enum esac except export extends extern false fi final finally float fn for foreach from func function go goto if impl " +
    "implements import in include instanceof int interface is lambda let local long loop match mod module move mut namespace new nil none not " +
    "null of operator or package pass private protected pub public raise ref require return self short signed sizeof static struct super " +
    "switch template then this throw trait true try type typedef typeof undefined union unless unsafe unsigned until use using var virtual " +
    "void volatile when where while with yield",
);
const SQL = words(
  "all alter and as asc between by case create delete desc distinct drop else end exists from group having in index insert into is join key " +
    "left limit not null on or order outer primary references select set table then union unique update values when where with",
);
const LITERALS = words("None True False Self");
const PLAIN = words(" text txt plain plaintext console output log markdown md");
const HASH = words(
  "python py sh bash shell zsh fish yaml yml toml ruby rb r perl make makefile dockerfile elixir julia nix ini powershell",
);
const DASH = words("sql lua haskell hs ada vhdl");

const STRING = String.raw`"""[^]*?(?:"""|$)|"(?:\\.|[^"\\\n])*"?|\x60(?:\\.|[^\x60\\])*\x60?`;
const QUOTED = String.raw`|'(?:\\.|[^'\\\n])*'`;
const REST = String.raw`|\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w*|[\p{L}_$][\p{L}\p{N}_$]*`;

function pattern(language) {
  const comment = HASH.has(language) ? "#.*" : DASH.has(language) ? "--.*" : String.raw`\/\/.*|\/\*[^]*?(?:\*\/|$)`;
  const single = ["rust", "rs"].includes(language) ? String.raw`|'(?:\\.[^'\n]{0,8}|[^'\\\n])'` : QUOTED;
  return new RegExp(`(${comment})|(${STRING}${single})${REST}`, "gu");
}

function kindOf(match, language) {
  if (match[1] !== undefined) return "comment";
  if (match[2] !== undefined) return "string";
  if (/^\d/.test(match[0])) return "number";
  const known = language === "sql" ? SQL.has(match[0].toLowerCase()) : WORDS.has(match[0]) || LITERALS.has(match[0]);
  return known ? "word" : null;
}

/** The nodes of coloured code. */
function coloured(code, language) {
  if (PLAIN.has(language) || code.length > MAX_COLOURED) return [code];
  const nodes = [];
  let done = 0;
  for (const match of code.matchAll(pattern(language))) {
    const kind = kindOf(match, language);
    if (!kind) continue;
    nodes.push(code.slice(done, match.index), h("span", { class: `code-${kind}` }, match[0]));
    done = match.index + match[0].length;
  }
  nodes.push(code.slice(done));
  return nodes;
}

export class CodeBlock {
  constructor(language) {
    this.language = language.toLowerCase();
    this.text = null;
    this.code = h("code");
    const label = language || "text";
    const bar = h("div", { class: "code-bar" }, h("span", {}, label), copyButton("Copy code", () => this.text));
    const body = h("pre", { tabindex: 0, role: "region", "aria-label": `Code: ${label}` }, this.code);
    this.element = h("div", { class: "code" }, bar, body);
  }

  update(text) {
    if (text === this.text) return;
    this.text = text;
    this.code.textContent = "";
    appendAll(this.code, coloured(text, this.language));
  }
}
