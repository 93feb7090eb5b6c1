// The one place for errors: what happened, what to do, and a button that does it.

import { isThere } from "./api.js";
import { byId, h, icon } from "./dom.js";
import { isKeyRemembered, writeKey } from "./store.js";

const POLL_MS = 2000;
let timer = 0;

export function clearNotice() {
  clearInterval(timer);
  byId("notice").replaceChildren();
}

/** Shows an error; `retry` is what its button does. */
export function showError(error, retry) {
  clearNotice();
  const { title, text } = explain(error);
  const button = h("button", { type: "button", class: "primary", onclick: retry }, "Try again");
  const details = [error.status && `HTTP ${error.status}`, error.code, error.requestId && `request ${error.requestId}`].filter(Boolean).join(" · ");
  const action = error.kind === "key" ? keyForm(retry) : h("div", { class: "actions" }, button);
  const body = h("div", {}, h("strong", {}, title), h("p", {}, text), details && h("p", { class: "hint" }, details), action);
  byId("notice").append(h("div", { class: "notice" }, icon("alert"), body));
  if (error.kind === "away") watch(body, button);
  if (error.retryAfter) countDown(button, error.retryAfter);
}

/** Says something that is no error of a request, with a button for what can be done about it. */
export function showNote(text, action) {
  clearNotice();
  const button = action && h("div", { class: "actions" }, h("button", { type: "button", onclick: action.act }, action.label));
  byId("notice").append(h("div", { class: "notice" }, icon("info"), h("div", {}, text, button)));
}

function explain(error) {
  const text = error.message;
  if (error.kind === "away") return { title: "The server is away", text: `${text} If basert serve has ended, start it again: this page notices.` };
  if (error.kind === "key") return { title: "This server wants an API key", text };
  if (error.kind === "broken") return { title: "The connection broke off", text: `${text} What had arrived is kept.` };
  if (error.code === "context_length_exceeded") return { title: "This conversation is too long for the model", text };
  if (error.status === 429) return { title: "Too many requests", text };
  if (error.status === 503) return { title: "The server is busy", text };
  if (error.status >= 500) return { title: "The server failed", text };
  if (error.status) return { title: "The server refused the request", text };
  if (error.kind === "stream") return { title: "The answer ended with an error", text };
  return { title: "The page has made a mistake", text };
}

// Looks until the server answers.
function watch(body, button) {
  timer = setInterval(async () => {
    if (!(await isThere()) || !body.isConnected) return;
    clearInterval(timer);
    body.querySelector("strong").textContent = "The server is back";
    body.querySelector("p").textContent = "It answers again.";
    button.focus();
  }, POLL_MS);
}

function countDown(button, seconds) {
  const end = performance.now() + seconds * 1000;
  const tick = () => {
    const left = Math.ceil((end - performance.now()) / 1000);
    button.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left <= 0) clearInterval(timer);
  };
  tick();
  timer = setInterval(tick, 250);
}

function keyForm(retry) {
  const field = h("input", { type: "password", "aria-label": "API key", placeholder: "API key", autocomplete: "off", required: true });
  const remember = h("input", { type: "checkbox", checked: isKeyRemembered() });
  const submit = (event) => {
    event.preventDefault();
    writeKey(field.value.trim(), remember.checked);
    retry();
  };
  const row = h("div", { class: "key-row" }, field, h("button", { class: "primary" }, "Use key"));
  return h("form", { class: "key-form", onsubmit: submit }, row, h("label", { class: "check" }, remember, "Remember it after this tab is closed"));
}
