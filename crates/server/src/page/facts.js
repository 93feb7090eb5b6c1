// What the server says of itself: `/v1/models` and `/props`. Fields that are missing are not shown.

import { getJson } from "./api.js";
import { byId, count, h } from "./dom.js";

const KNOWN = [
  ["Context", /(^|\.)(n_ctx|max_context|context|context_length)$/, (value) => `${count(Number(value))} tokens`],
  ["K cache", /(^|\.)(k|k_type|k_dtype|type_k|cache_type_k|kv_k)$/],
  ["V cache", /(^|\.)(v|v_type|v_dtype|type_v|cache_type_v|kv_v)$/],
  ["Slots", /(^|\.)(total_slots|slots|max_batch_size)$/],
  ["Instruction set", /(^|\.)isa$/],
  ["Threads", /(^|\.)threads$/],
  ["Build", /(^|\.)(build_info|version)$/],
];

/** `{models: [id], props}`; rejects when the server does not answer. */
export async function readFacts() {
  const [models, props] = await Promise.all([getJson("v1/models"), getJson("props").catch(ignoreMissing)]);
  const listed = Array.isArray(models?.data) ? models.data : [];
  return { models: listed.map((model) => String(model.id)), props: flatten(props ?? {}) };
}

function ignoreMissing(error) {
  if (error.status !== 404) throw error;
  return null;
}

/** Nested objects as `[path, scalar]` pairs. */
function flatten(value, path = "") {
  if (value === null || typeof value !== "object") return value === null || value === "" ? [] : [[path, value]];
  return Object.entries(value).flatMap(([key, inner]) => flatten(inner, path ? `${path}.${key}` : key));
}

function known(props) {
  return KNOWN.flatMap(([label, pattern, say = String]) => {
    const found = props.find(([path]) => pattern.test(path));
    return found ? [[label, say(found[1])]] : [];
  });
}

/** What the server samples with where a request says nothing. */
export function serverDefault(facts, name) {
  return facts?.props.find(([path]) => path.endsWith(`generation_settings.${name}`) || path.endsWith(`.params.${name}`))?.[1];
}

const pairs = (list) => list.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);

/** Shows the facts in the bar, on the empty page and in the panel. `facts` is null while the server is away. */
export function showFacts(facts, model) {
  const list = known(facts?.props ?? []);
  const value = (label) => list.find(([name]) => name === label)?.[1];
  const several = (facts?.models.length ?? 0) > 1;
  byId("light").classList.toggle("on", facts !== null);
  byId("light").title = facts ? "The server answers" : "The server does not answer";
  byId("model").textContent = several ? "" : (model ?? (facts ? "no model" : "away"));
  byId("kv").textContent = value("K cache") ? `K ${value("K cache")} · V ${value("V cache") ?? "?"}` : "";
  byId("show-facts").setAttribute("aria-label", `Model ${model ?? "unknown"}: facts`);
  document.title = model ? `${model} · BaseRT` : "BaseRT";
  showModels(facts?.models ?? [], model);
  byId("summary").replaceChildren(...pairs(list.slice(0, 3)));
  byId("facts-main").replaceChildren(...pairs([["Model", model ?? "unknown"], ...list]));
  byId("facts-all").replaceChildren(...pairs((facts?.props ?? []).map(([path, text]) => [path, String(text).slice(0, 400)])));
}

function showModels(models, model) {
  const select = byId("models");
  select.hidden = models.length < 2;
  select.replaceChildren(...models.map((id) => h("option", { value: id, selected: id === model }, id)));
}
