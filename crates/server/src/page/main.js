// The page: the bar, the field for messages, the keys.

import { readTools } from "./chat.js";
import { announce, byId, icon, isTouch, plural } from "./dom.js";
import { canThink, readFacts, showFacts } from "./facts.js";
import { clearNotice, showError } from "./notice.js";
import { openChats, openSettings, setUpPanels } from "./panels.js";
import { Session } from "./session.js";
import { currentConversation, newConversation, onChangeElsewhere, readDraft, readSettings, writeDraft, writeSettings } from "./store.js";

const THEMES = ["system", "light", "dark"];
const THINKING = ["default", "on", "off"];
const MAX_FIELD = 240; // px

let settings = sound(readSettings());
let facts = null;
let online = false;

const prompt = byId("prompt");
const next = (list, value) => list[(list.indexOf(value) + 1) % list.length];
const model = () => (facts?.models.find(({ id }) => id === settings.model) ?? facts?.models[0])?.id;
const session = new Session(() => ({ settings, model: model() }), changed);

// Stored tools that are none would stop every request.
function sound(saved) {
  try {
    readTools(saved.tools);
    return saved;
  } catch {
    return { ...saved, tools: "" };
  }
}

function change(changes) {
  settings = { ...settings, ...changes };
  writeSettings(settings);
  showSettings();
}

function showSettings() {
  document.documentElement.dataset.theme = settings.theme;
  for (const name of ["aria-label", "title"]) byId("theme").setAttribute(name, `Theme: ${settings.theme}`);
  byId("thinking").hidden = !canThink(facts, model());
  byId("thinking").textContent = `Thinking: ${settings.thinking}`;
  const tools = readTools(settings.tools).length;
  byId("tools").hidden = tools === 0;
  byId("tools").textContent = plural(tools, "tool");
  showFacts(facts, model(), online);
}

function showState() {
  const running = session.running !== null;
  const label = running ? "Stop" : "Send";
  const send = byId("send");
  send.replaceChildren(icon(running ? "stop" : "send"));
  for (const name of ["aria-label", "title"]) send.setAttribute(name, label);
  send.disabled = !running && prompt.value.trim() === "";
  byId("keys").textContent = isTouch ? "" : running ? "Esc stops" : "Enter sends, Shift+Enter breaks the line";
}

// An answer has begun or ended, perhaps with an error.
function changed(failure) {
  showState();
  if (failure?.kind === "away") online = false;
  else if (!online && !session.running) loadFacts(() => {});
  showSettings();
}

async function loadFacts(failed = (error) => showError(error, connect)) {
  try {
    facts = await readFacts();
    online = true;
  } catch (error) {
    online = error.kind !== "away";
    failed(error);
  }
  showSettings();
}

async function connect() {
  clearNotice();
  await loadFacts();
}

async function submit() {
  if (session.running) return session.stop();
  const text = prompt.value.trim();
  if (!text) return;
  prompt.value = "";
  typed();
  if (!facts) await loadFacts(() => {});
  await session.send(text);
}

function typed() {
  writeDraft(prompt.value);
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight, MAX_FIELD)}px`;
  showState();
}

function promptKey(event) {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey && !isTouch) {
    event.preventDefault();
    if (session.running) announce("An answer is running. Escape stops it.");
    else submit();
  }
  if (event.key === "ArrowUp" && prompt.value === "") editLast(event);
}

function editLast(event) {
  const last = [...document.querySelectorAll(".message.user")].at(-1);
  if (!last) return;
  event.preventDefault();
  last.querySelector('[aria-label="Edit message"]').click();
}

function pageKey(event) {
  if (event.key !== "Escape" || document.querySelector("dialog[open]") || !session.running) return;
  session.stop();
  prompt.focus();
}

function open(conversation) {
  session.open(conversation);
  prompt.focus();
}

function listen() {
  const clicks = {
    "new-chat": () => open(newConversation()),
    "show-chats": () => openChats(session.conversation, open, (id) => id === session.conversation.id && session.open(newConversation())),
    "show-settings": () => openSettings(settings, facts, saved),
    tools: () => openSettings(settings, facts, saved),
    theme: () => change({ theme: next(THEMES, settings.theme) }),
    thinking: () => change({ thinking: next(THINKING, settings.thinking) }),
  };
  for (const [id, action] of Object.entries(clicks)) byId(id).addEventListener("click", action);
  byId("models").addEventListener("change", ({ target }) => change({ model: target.value }));
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  prompt.addEventListener("input", typed);
  prompt.addEventListener("keydown", promptKey);
  document.addEventListener("keydown", pageKey);
  addEventListener("pagehide", () => session.save());
  onChangeElsewhere((conversation) => {
    if (conversation?.id === session.conversation.id && !session.running) session.open(conversation);
  });
}

function saved(changed) {
  change(changed);
  loadFacts();
}

for (const button of document.querySelectorAll("[data-icon]")) button.append(icon(button.dataset.icon));
setUpPanels();
listen();
prompt.value = readDraft();
session.open(currentConversation());
typed();
showSettings();
loadFacts();
