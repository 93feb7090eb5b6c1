// How messages look. A view is built once; `update` brings it up to date with its message.

import { isEmpty, isWhole, pendingCalls } from "./chat.js";
import { CodeBlock } from "./code.js";
import { copyButton, count, duration, h, icon, iconButton, plural } from "./dom.js";
import { Markdown } from "./markdown.js";
import { parse } from "./api.js";

const NOTES = {
  length: "Stopped at the limit of tokens.",
  stopped: "Stopped.",
  broken: "Incomplete: the answer broke off here.",
  content_filter: "Stopped by a filter.",
};

/** What a person can do with a message: `edit(message, text)`, `regenerate(message)`, `sendResults(message)`. */
export function messageView(message, actions) {
  return message.role === "user" ? new UserView(message, actions) : new AssistantView(message, actions);
}

class UserView {
  constructor(message, actions) {
    this.bubble = h("div", { class: "bubble" }, message.content);
    const edit = iconButton("pen", "Edit message", () => openEditor(this.element, this.bubble, message, "Send", actions.edit));
    const buttons = h("div", { class: "tools" }, copyButton("Copy message", () => message.content), edit);
    this.element = h("article", { class: "message user", "aria-label": "You" }, this.bubble, buttons);
  }

  update() {}
}

class AssistantView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.thinking = new ThinkingView(message);
    this.waiting = h("div", { class: "waiting" });
    this.markdown = new Markdown();
    this.calls = h("div", { class: "calls" });
    this.callViews = [];
    this.note = h("p", { class: "note" });
    this.meta = h("span", { class: "meta" });
    this.foot = h("div", { class: "message-foot" }, this.meta, this.buttons());
    const parts = [this.thinking.element, this.waiting, this.markdown.element, this.calls, this.note, this.foot];
    this.element = h("article", { class: "message assistant", "aria-label": "Answer" }, ...parts);
  }

  buttons() {
    const { message, actions } = this;
    const edit = iconButton("pen", "Edit answer", () => openEditor(this.element, this.markdown.element, message, "Save", actions.edit));
    const again = iconButton("retry", "Answer again", () => actions.regenerate(message), { class: "icon-button again" });
    return h("div", { class: "tools" }, copyButton("Copy answer", () => message.content), again, edit);
  }

  /** `live` is what is known while the answer runs, else null. */
  update(live) {
    const { message } = this;
    this.element.classList.toggle("running", live !== null);
    this.element.setAttribute("aria-busy", String(live !== null));
    this.thinking.update(live);
    this.showWaiting(live);
    this.markdown.update(message.content);
    this.showCalls(live);
    this.showNote(live);
    this.foot.hidden = live !== null;
    this.meta.replaceChildren(...statistics(message.stats));
  }

  showWaiting(live) {
    this.waiting.hidden = !live || live.first > 0;
    if (this.waiting.hidden) return;
    const elapsed = performance.now() - live.started;
    const { done, total } = live.progress ?? {};
    const text = total ? `Reading the prompt: ${count(done)} of ${count(total)} tokens` : elapsed > 1000 ? `Waiting for the first token: ${Math.floor(elapsed / 1000)} s` : "";
    this.bar ??= h("progress", { "aria-label": "Prompt read" });
    this.label ??= h("span");
    if (!this.label.isConnected) this.waiting.replaceChildren(h("span", { class: "dots", "aria-hidden": "true" }), this.label, this.bar);
    this.label.textContent = text;
    this.bar.hidden = !total;
    if (total) Object.assign(this.bar, { max: total, value: done });
  }

  showCalls(live) {
    const { message } = this;
    while (this.callViews.length < message.calls.length) {
      const view = new CallView(message.calls[this.callViews.length], message);
      this.callViews.push(view);
      this.calls.append(view.element);
    }
    for (const view of this.callViews) view.update(live);
    const pending = !live && pendingCalls([message]).length > 0;
    if (pending && !this.submit) {
      this.submit = h("button", { type: "button", class: "primary", onclick: () => this.sendResults() }, "Send results");
      this.calls.append(this.submit);
    }
    if (this.submit) this.submit.hidden = !pending;
  }

  sendResults() {
    for (const view of this.callViews) view.take();
    this.actions.sendResults(this.message);
  }

  showNote(live) {
    const { finish, warnings } = this.message;
    const note = live ? "" : (NOTES[finish] ?? (["stop", "tool_calls", null].includes(finish) ? "" : `Ended: ${finish}`));
    const nothing = !live && !note && isEmpty(this.message) ? "The answer is empty." : "";
    this.note.textContent = [note, nothing, ...warnings].filter(Boolean).join(" ");
  }
}

class ThinkingView {
  constructor(message) {
    this.message = message;
    this.label = h("span");
    this.markdown = new Markdown();
    this.element = h("details", { class: "thinking", ontoggle: () => this.fill() }, h("summary", {}, icon("chevron"), this.label), this.markdown.element);
  }

  update(live) {
    const { reasoning, thinkMs } = this.message;
    this.element.hidden = !reasoning.trim();
    if (this.element.hidden) return;
    const now = Boolean(live?.thinkingSince);
    const ms = thinkMs + (now ? performance.now() - live.thinkingSince : 0);
    this.label.textContent = now ? `Thinking…${ms < 1000 ? "" : ` ${Math.floor(ms / 1000)} s`}` : `Thought for ${duration(ms)}`;
    this.fill();
  }

  // A folded thought is not laid out.
  fill() {
    if (this.element.open) this.markdown.update(this.message.reasoning);
  }
}

class CallView {
  constructor(call, message) {
    this.call = call;
    this.message = message;
    this.name = h("span", { class: "call-name" });
    this.state = h("span", { class: "call-state" });
    this.code = new CodeBlock("json");
    this.result = h("div", { class: "call-result" });
    const head = h("div", { class: "call-head" }, icon("tool"), this.name, this.state);
    this.element = h("section", { class: "call", "aria-label": "Tool call" }, head, this.code.element, this.result);
  }

  update(live) {
    const { call } = this;
    const whole = isWhole(call);
    this.name.textContent = call.name;
    this.code.update(live ? call.arguments : pretty(call.arguments));
    this.state.textContent = live ? "" : !whole ? "Cut off, not sent back" : call.result === undefined ? "Waits for its result" : "Answered";
    if (!live && whole) this.showResult();
  }

  showResult() {
    const { result, name } = this.call;
    if (result !== undefined) {
      this.field = null;
      this.result.replaceChildren(h("span", { class: "call-label" }, "Result"), h("pre", { tabindex: 0 }, result || "(empty)"));
    } else if (!this.field) {
      this.field = h("textarea", { rows: 2, class: "mono", "aria-label": `Result of ${name}`, placeholder: "What the tool returned" });
      this.result.replaceChildren(this.field);
    }
  }

  take() {
    if (this.field) this.call.result = this.field.value;
  }
}

function pretty(text) {
  const value = parse(text);
  return value === undefined ? text : JSON.stringify(value, null, 2);
}

/** Puts an editor in the place of a message's text. Enter saves, Shift+Enter breaks the line, Escape gives up. */
function openEditor(element, shown, message, verb, save) {
  if (element.querySelector(".editor")) return;
  const field = h("textarea", { "aria-label": "Edit message" });
  const finish = (text) => {
    editor.remove();
    element.classList.remove("editing");
    if (text !== null && text.trim() && text !== message.content) save(message, text);
    else element.querySelector('[aria-label^="Edit"]').focus();
  };
  const keys = (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") finish(null);
    else if (event.key === "Enter" && !event.shiftKey && message.role === "user") finish(field.value);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const confirm = h("button", { type: "button", class: "primary", onclick: () => finish(field.value) }, verb);
  const cancel = h("button", { type: "button", onclick: () => finish(null) }, "Cancel");
  const editor = h("div", { class: "editor", onkeydown: keys }, field, h("div", { class: "actions" }, confirm, cancel));
  field.value = message.content;
  element.classList.add("editing");
  shown.after(editor);
  field.focus();
}

/** What an answer cost, in the order in which people ask. */
function statistics(stats) {
  if (!stats) return [];
  const about = stats.estimated ? "≈ " : "";
  const facts = [];
  if (stats.rate) facts.push([`${about}${stats.rate.toFixed(1)} tok/s`, "Speed of the answer after its first token"]);
  facts.push([`${about}${plural(stats.tokens, "token")}`, "Tokens of the answer, thinking included"]);
  facts.push([`first after ${duration(stats.first)}`, "Time to the first token"]);
  if (stats.prompt !== null) {
    const cached = stats.cached === null ? "" : stats.cached ? `, ${count(stats.cached)} cached` : ", none cached";
    facts.push([`prompt ${count(stats.prompt)}${cached}`, "Tokens of the prompt, and how many of them the prompt cache had already read"]);
  }
  return facts.map(([text, title]) => h("span", { title }, text));
}
