// What the browser keeps: settings, the API key, and every conversation under a key of its own, so that two tabs do not overwrite each other.

const SETTINGS = "basert.settings";
const KEY = "basert.key";
const CURRENT = "basert.current";
const DRAFT = "basert.draft";
const CHAT = "basert.chat.";

export const DEFAULTS = {
  theme: "system",
  system: "",
  thinking: "default",
  tools: "",
  sampling: {},
};

function read(storage, key) {
  try {
    return JSON.parse(storage().getItem(key));
  } catch {
    return null;
  }
}

// False where the browser is full, or keeps nothing.
function write(storage, key, value) {
  try {
    if (value === null) storage().removeItem(key);
    else storage().setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

// Asking for the storage can itself be forbidden.
const local = () => localStorage;
const tab = () => sessionStorage;

export function readSettings() {
  const saved = read(local, SETTINGS) ?? {};
  return { ...DEFAULTS, ...saved, sampling: { ...saved.sampling } };
}

export const writeSettings = (settings) => write(local, SETTINGS, settings);

/** The API key: of this tab, or remembered. */
export const readKey = () => read(tab, KEY) ?? read(local, KEY) ?? "";

export const isKeyRemembered = () => read(local, KEY) !== null;

export function writeKey(key, remember) {
  write(tab, KEY, key || null);
  write(local, KEY, remember && key ? key : null);
}

export const readDraft = () => read(tab, DRAFT) ?? "";
export const writeDraft = (text) => write(tab, DRAFT, text || null);

export function newConversation() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), updated: Date.now(), messages: [] };
}

const isMessage = (message) => ["user", "assistant"].includes(message?.role) && typeof message.content === "string";

function readConversation(id) {
  const conversation = read(local, CHAT + id);
  const sound = Array.isArray(conversation?.messages) && conversation.messages.every(isMessage);
  return sound ? { ...conversation, id } : null;
}

/** All conversations, the latest first. */
export function listConversations() {
  let keys = [];
  try {
    keys = Object.keys(localStorage).filter((key) => key.startsWith(CHAT));
  } catch {
    // Nothing is kept here.
  }
  const found = keys.map((key) => readConversation(key.slice(CHAT.length))).filter(Boolean);
  return found.sort((a, b) => b.updated - a.updated);
}

/** The conversation of this tab, else the latest, else a new one. */
export function currentConversation() {
  const id = read(tab, CURRENT);
  if (id === null) return listConversations()[0] ?? newConversation();
  return readConversation(id) ?? newConversation();
}

/** Makes a conversation this tab's. */
export const setCurrent = (conversation) => write(tab, CURRENT, conversation.id);

/** Calls back with a conversation that another tab has written. */
export function onChangeElsewhere(callback) {
  addEventListener("storage", ({ key, newValue }) => {
    if (key?.startsWith(CHAT) && newValue) callback(readConversation(key.slice(CHAT.length)));
  });
}

/** Keeps a conversation, or forgets an empty one; false where the browser cannot. */
export function writeConversation(conversation) {
  return write(local, CHAT + conversation.id, conversation.messages.length ? conversation : null);
}

export const deleteConversation = (id) => write(local, CHAT + id, null);

export function title(conversation) {
  return conversation.messages[0]?.content.trim().slice(0, 80) || "New chat";
}
