// What the server says of itself: `/v1/models` and `/props`. What is missing is not shown.

import { getJson } from "./api.js";
import { byId, bytes, count, h } from "./dom.js";

// Where a fact may stand; the first that is there counts.
const KNOWN = [
  ["Context", ["capabilities.context", "n_ctx"], (tokens) => `${count(tokens)} tokens`],
  ["K cache", ["k_type"]],
  ["V cache", ["v_type"]],
  ["Cache per token", ["kv_bytes_per_token"], bytes],
  ["Page", ["page_tokens"], (tokens) => `${count(tokens)} tokens`],
  ["Memory", ["memory.total"], bytes],
  ["Slots", ["capabilities.slots", "total_slots"]],
  ["Architecture", ["arch"]],
  ["Instruction set", ["isa"]],
  ["Threads", ["threads"]],
  ["Build", ["build_info"]],
];
const ON_EMPTY_PAGE = ["Context", "K cache", "V cache"];

/** `{models, props}`: objects with an `id`, and `[path, value]` pairs. Rejects when the server does not answer. */
export async function readFacts() {
  const [models, props] = await Promise.all([getJson("v1/models"), getJson("props").catch(ignoreMissing)]);
  const listed = Array.isArray(models?.data) ? models.data : [];
  return { models: listed.filter((model) => typeof model?.id === "string"), props: flatten(props ?? {}) };
}

function ignoreMissing(error) {
  if (error.status !== 404) throw error;
  return null;
}

/** Nested objects as `[path, scalar]` pairs. */
function flatten(value, path = "") {
  if (value === null || value === "") return [];
  if (typeof value !== "object") return [[path, value]];
  return Object.entries(value).flatMap(([key, inner]) => flatten(inner, path ? `${path}.${key}` : key));
}

const find = (list, name) => list.find(([path]) => path === name || path.endsWith(`.${name}`))?.[1];

/** Whether a model can think, as far as the server says. */
export const canThink = (facts, model) => facts?.models.find(({ id }) => id === model)?.capabilities?.thinking !== false;

/** What the server samples with where a request says nothing. */
export function serverDefault(facts, name) {
  const theirs = name === "repetition_penalty" ? "repeat_penalty" : name;
  return find(facts?.props ?? [], `params.${theirs}`) ?? "";
}

const pairs = (list) => list.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);

/** Shows the facts in the bar, on the empty page and in the panel. */
export function showFacts(facts, model, online) {
  const own = flatten(facts?.models.find(({ id }) => id === model) ?? {});
  const all = [...own, ...(facts?.props ?? [])];
  const known = KNOWN.flatMap(([label, names, say = String]) => {
    const value = names.map((name) => find(all, name)).find((found) => found !== undefined);
    return value === undefined ? [] : [[label, say(value)]];
  });
  showBar(facts, model, online, Object.fromEntries(known));
  byId("summary").replaceChildren(...pairs(known.filter(([label]) => ON_EMPTY_PAGE.includes(label))));
  byId("facts-main").replaceChildren(...pairs([["Model", model ?? "unknown"], ...known]));
  byId("facts-all").replaceChildren(...pairs(all.map(([path, text]) => [path, String(text).slice(0, 400)])));
}

function showBar(facts, model, online, known) {
  const models = facts?.models ?? [];
  const several = models.length > 1;
  byId("light").classList.toggle("on", online);
  byId("light").title = online ? "The server answers" : "The server does not answer";
  byId("model").textContent = several ? "" : (model ?? "no model");
  byId("kv").textContent = known["K cache"] ? `K ${known["K cache"]} · V ${known["V cache"]}` : "";
  byId("show-facts").setAttribute("aria-label", `Model ${model ?? "unknown"}: facts`);
  byId("models").hidden = !several;
  byId("models").replaceChildren(...models.map(({ id }) => h("option", { value: id, selected: id === model }, id)));
  document.title = model ? `${model} · BaseRT` : "BaseRT";
}
