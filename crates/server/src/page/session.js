// The conversation on the page, and the answer that runs.

import { answer, assistantMessage, isEmpty, newLive, pendingCalls, requestBody, userMessage } from "./chat.js";
import { announce, byId, isTouch, plural } from "./dom.js";
import { clearNotice, showError, showNote } from "./notice.js";
import { setCurrent, writeConversation } from "./store.js";
import { messageView } from "./view.js";

const SAVE_MS = 1000;
const TICK_MS = 250;
const NEAR_END = 60; // px

// A stored message; what it lacks is empty, and an answer that had not ended was stopped.
function restored(message) {
  return message.role === "user" ? message : { ...assistantMessage(), ...message, finish: message.finish ?? "stopped" };
}

// The button that was pressed may be gone. On a phone the keyboard would hide the answer.
function focusPrompt() {
  if (!isTouch) byId("prompt").focus({ preventScroll: true });
}

export class Session {
  /** `context()` gives `{settings, model}`; `changed(failure)` is called when an answer begins or ends. */
  constructor(context, changed) {
    Object.assign(this, { context, changed, running: null, views: new Map(), follow: true, undo: null });
    this.scroll = byId("scroll");
    this.scroll.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.keepAtEnd()).observe(byId("thread"));
    byId("latest").addEventListener("click", () => this.toEnd());
    byId("toast").querySelector("button").addEventListener("click", () => this.takeBack());
  }

  /** Shows a conversation. */
  async open(conversation) {
    await this.stop();
    this.conversation = conversation;
    conversation.messages = conversation.messages.map(restored);
    this.offerUndo(null);
    clearNotice();
    this.show();
    this.toEnd();
    if (conversation.messages.at(-1)?.role === "user") showNote("This message has no answer yet", { label: "Answer it", act: () => this.run() });
    setCurrent(conversation);
  }

  show() {
    const { messages } = this.conversation;
    const gone = [...this.views.keys()].filter((message) => !messages.includes(message));
    for (const message of gone) {
      this.views.get(message).element.remove();
      this.views.delete(message);
    }
    for (const message of messages) {
      if (!this.views.has(message)) this.views.set(message, this.newView(message));
      this.views.get(message).update(message === this.running?.message ? this.running.live : null);
    }
    byId("thread").replaceChildren(...messages.map((message) => this.views.get(message).element));
    byId("welcome").hidden = messages.length > 0;
  }

  newView(message) {
    return messageView(message, {
      edit: (edited, text) => this.edit(edited, text),
      regenerate: (old) => this.replaceFrom(old, []),
      sendResults: () => this.run(),
    });
  }

  save() {
    if (!writeConversation(this.conversation)) showNote("This chat is not kept: the browser's storage is full or blocked. Deleting older chats makes room.");
  }

  /** Sends a message. Calls that wait for a result are told that there is none. */
  async send(text) {
    for (const call of pendingCalls(this.conversation.messages)) call.result = "No result was given.";
    this.conversation.messages.push(userMessage(text));
    this.offerUndo(null);
    await this.run();
  }

  async edit(message, text) {
    if (message.role === "user") return this.replaceFrom(message, [userMessage(text)]);
    const { messages } = this.conversation;
    messages[messages.indexOf(message)] = { ...message, content: text };
    this.show();
    this.save();
    focusPrompt();
  }

  /** Puts others in the place of a message and all that followed, and has them answered. */
  async replaceFrom(message, others) {
    await this.stop();
    const before = this.conversation.messages;
    const at = before.indexOf(message);
    this.conversation.messages = [...before.slice(0, at), ...others];
    this.offerUndo(before, before.length - at);
    await this.run();
  }

  offerUndo(messages, replaced = 0) {
    this.undo = messages;
    byId("toast").hidden = !messages;
    byId("toast").firstElementChild.textContent = `${plural(replaced, "message")} replaced.`;
  }

  async takeBack() {
    const messages = this.undo;
    await this.stop();
    this.conversation.messages = messages;
    this.offerUndo(null);
    clearNotice();
    this.show();
    this.save();
    focusPrompt();
  }

  /** Ends the running answer and keeps what there is of it. */
  async stop() {
    this.running?.controller.abort();
    await this.running?.ended;
  }

  /** Answers the conversation as it stands. */
  async run() {
    await this.stop();
    clearNotice();
    const { settings, model } = this.context();
    const body = requestBody(this.conversation.messages, settings, model);
    const message = assistantMessage();
    this.running = { message, live: newLive(), controller: new AbortController() };
    this.conversation.messages.push(message);
    this.show();
    this.toEnd();
    this.save();
    focusPrompt();
    announce("Answering");
    this.running.ended = this.stream(body, this.running);
    this.changed();
    await this.running.ended;
  }

  async stream(body, { message, live, controller }) {
    const paint = this.painter(message, live);
    const tick = setInterval(paint.soon, TICK_MS);
    const keep = setInterval(() => writeConversation(this.conversation), SAVE_MS);
    let failure = null;
    try {
      await answer(body, message, live, controller.signal, paint.soon);
    } catch (error) {
      if (error.name !== "AbortError") failure = error;
    }
    clearInterval(tick);
    clearInterval(keep);
    paint.stop();
    this.finish(message, failure);
  }

  finish(message, failure) {
    this.running = null;
    const { messages } = this.conversation;
    if (message.finish !== "stop" && isEmpty(message)) messages.splice(messages.indexOf(message), 1);
    this.conversation.updated = Date.now();
    this.show();
    this.save();
    this.changed(failure);
    if (failure) showError(failure, () => this.again(message));
    else announce(message.stats ? `Answer complete, ${plural(message.stats.tokens, "token")}` : "Stopped");
    this.keepAtEnd();
  }

  // After an error: the same question once more, without what is left of the broken answer.
  async again(message) {
    if (this.conversation.messages.includes(message)) await this.replaceFrom(message, []);
    else await this.run();
  }

  // Paints at most once a frame, and leaves three quarters of the time to everything else.
  painter(message, live) {
    let wanted = false;
    let stopped = false;
    let free = 0;
    const paint = () => {
      if (stopped) return;
      const start = performance.now();
      if (start < free) return void requestAnimationFrame(paint);
      wanted = false;
      this.views.get(message)?.update(live);
      free = performance.now() + 3 * (performance.now() - start);
    };
    const soon = () => {
      if (!wanted) requestAnimationFrame(paint);
      wanted = true;
    };
    return { soon, stop: () => (stopped = true) };
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroll;
    this.follow = scrollHeight - scrollTop - clientHeight < NEAR_END;
    byId("latest").hidden = this.follow;
  }

  toEnd() {
    this.follow = true;
    this.keepAtEnd();
  }

  keepAtEnd() {
    if (this.follow) this.scroll.scrollTop = this.scroll.scrollHeight;
  }
}

