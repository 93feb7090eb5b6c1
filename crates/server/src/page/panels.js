// The panels: settings, facts, chats.

import { readTools } from "./chat.js";
import { byId, h, iconButton } from "./dom.js";
import { serverDefault } from "./facts.js";
import { deleteConversation, isKeyRemembered, listConversations, readKey, title, writeKey } from "./store.js";

// Names as in the API, with what the page lets through; the server judges the rest.
const SAMPLING = [
  { name: "temperature", min: 0, step: "any" },
  { name: "top_p", min: 0, max: 1, step: "any" },
  { name: "top_k", min: 0, step: 1 },
  { name: "min_p", min: 0, max: 1, step: "any" },
  { name: "max_tokens", min: 1, step: 1 },
  { name: "seed", step: 1 },
  { name: "repetition_penalty", min: 0, max: 10, step: "any" },
  { name: "presence_penalty", min: -2, max: 2, step: "any" },
  { name: "frequency_penalty", min: -2, max: 2, step: "any" },
];

export function setUpPanels() {
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("click", ({ target }) => {
      if (target === dialog || target.hasAttribute("data-close")) dialog.close();
    });
  }
  byId("show-facts").addEventListener("click", () => byId("facts").showModal());
  byId("sampling").append(...SAMPLING.map(samplingField));
}

function samplingField({ name, ...limits }) {
  return h("label", {}, name.replaceAll("_", " "), h("input", { type: "number", name, ...limits }));
}

/** Opens the settings; `save` gets the changed ones. */
export function openSettings(settings, facts, save) {
  const form = byId("settings-form");
  const fields = form.elements;
  fields.system.value = settings.system;
  fields.tools.value = settings.tools;
  fields.key.value = readKey();
  fields.remember.checked = isKeyRemembered();
  for (const { name } of SAMPLING) {
    fields[name].value = settings.sampling[name] ?? "";
    fields[name].placeholder = serverDefault(facts, name);
  }
  problem("");
  form.onsubmit = (event) => {
    const changed = readForm(form);
    if (changed) save({ ...settings, ...changed });
    else event.preventDefault();
  };
  byId("settings").showModal();
}

// The settings of the form, or null where it shows what is wrong.
function readForm(form) {
  const fields = form.elements;
  if (!form.reportValidity()) return null;
  try {
    readTools(fields.tools.value);
  } catch (error) {
    problem(error.message);
    fields.tools.focus();
    return null;
  }
  writeKey(fields.key.value.trim(), fields.remember.checked);
  const set = SAMPLING.filter(({ name }) => fields[name].value !== "");
  const sampling = Object.fromEntries(set.map(({ name }) => [name, fields[name].valueAsNumber]));
  return { system: fields.system.value, tools: fields.tools.value, sampling };
}

function problem(text) {
  byId("tools-problem").textContent = text;
  byId("declared").setAttribute("aria-invalid", String(text !== ""));
}

/** Opens the list of chats; `open` gets the chosen one, `leave` the id of one that is about to go. */
export function openChats(current, open, leave) {
  const choose = (conversation) => {
    byId("chats").close();
    open(conversation);
  };
  const items = listConversations().map((conversation) => chatItem(conversation, conversation.id === current.id, choose, leave));
  byId("chat-list").replaceChildren(...(items.length ? items : [h("li", { class: "hint" }, "No chats yet.")]));
  byId("chats").showModal();
}

function chatItem(conversation, isCurrent, choose, leave) {
  const when = new Date(conversation.updated).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  const onclick = () => choose(conversation);
  const words = [h("span", {}, title(conversation)), h("small", {}, when)];
  const name = h("button", { type: "button", class: "chat-name", "aria-current": isCurrent && "true", onclick }, words);
  const sure = h("button", { type: "button", class: "danger", hidden: true, onclick: remove }, "Delete");
  const ask = iconButton("trash", `Delete chat: ${title(conversation)}`, () => {
    ask.hidden = true;
    sure.hidden = false;
    sure.focus();
  });
  const item = h("li", {}, name, ask, sure);
  // An answer that still runs would be kept once more, so its end comes first.
  async function remove() {
    await leave(conversation.id);
    deleteConversation(conversation.id);
    item.remove();
  }
  return item;
}
