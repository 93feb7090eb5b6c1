// One answer: the request made of a conversation, and what its events do to the message that grows.

import { ApiError, chat, parse } from "./api.js";

export const userMessage = (content) => ({ role: "user", content });

export const assistantMessage = () => ({ role: "assistant", content: "", reasoning: "", thinkMs: 0, calls: [], warnings: [], finish: null, stats: null });

/** Whether a call's arguments arrived whole; others are shown but never sent back. */
export const isWhole = (call) => call.name !== "" && typeof parse(call.arguments) === "object";

export const isEmpty = (message) => !message.content && !message.reasoning && message.calls.length === 0;

/** Whole calls of the conversation's last message that have no result yet. */
export function pendingCalls(messages) {
  const last = messages.at(-1);
  return last?.role === "assistant" ? last.calls.filter((call) => isWhole(call) && call.result === undefined) : [];
}

/** The body of a request. Only what was set is sent; the server knows its own defaults. */
export function requestBody(messages, settings, model) {
  const history = messages.flatMap(wire).reduce(joinUsers, []);
  if (settings.system.trim()) history.unshift({ role: "system", content: settings.system });
  const body = { messages: history, stream: true, stream_options: { include_usage: true }, ...settings.sampling };
  if (model) body.model = model;
  const tools = readTools(settings.tools);
  if (tools.length) body.tools = tools;
  if (settings.thinking !== "default") body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return body;
}

// Questions that were never answered become one: many templates want the roles to take turns.
function joinUsers(history, message) {
  const last = history.at(-1);
  if (message.role === "user" && last?.role === "user") last.content += `\n\n${message.content}`;
  else history.push(message);
  return history;
}

function wire(message) {
  if (message.role === "user") return [{ role: "user", content: message.content }];
  const calls = message.calls.filter(isWhole);
  const own = { role: "assistant", content: message.content };
  if (message.reasoning) own.reasoning_content = message.reasoning;
  if (calls.length) own.tool_calls = calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  return [own, ...calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: call.result ?? "" }))];
}

/** Tool declarations as a person pastes them: a list or one, with or without the wrapping `function`. Throws a sentence. */
export function readTools(text) {
  if (!text.trim()) return [];
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
  return (Array.isArray(value) ? value : [value]).map((tool, at) => {
    const declared = tool?.function ?? tool;
    if (typeof declared?.name !== "string" || !declared.name) throw new Error(`Tool ${at + 1} has no "name".`);
    return { type: "function", function: declared };
  });
}

/** What is known about a running answer and not kept with it. Times are those of `performance.now()`. */
export const newLive = () => ({ started: performance.now(), first: 0, last: 0, thinkingSince: 0, pieces: 0, progress: null, usage: null, timings: null });

/** Runs a request into `message`; `changed` is called after every event. Rejects with what stopped it. */
export async function answer(body, message, live, signal, changed) {
  try {
    for await (const { comment, chunk } of chat(body, signal)) {
      if (comment !== undefined) live.progress = readProgress(comment) ?? live.progress;
      else apply(chunk, message, live);
      changed();
    }
    message.finish ??= "stop";
    for (const call of message.calls) call.arguments ||= "{}";
  } catch (error) {
    if (error.kind === "broken" && message.finish) return;
    message.finish = error.name === "AbortError" ? "stopped" : "broken";
    throw error;
  } finally {
    endThinking(message, live);
    message.stats = statistics(live);
  }
}

// Heartbeats say how far a prompt is read: ": prefill 2048/8192".
function readProgress(comment) {
  const match = /(\d+) ?\/ ?(\d+)/.exec(comment);
  return match && { done: Number(match[1]), total: Number(match[2]) };
}

function apply(chunk, message, live) {
  live.usage = chunk.usage ?? live.usage;
  live.timings = chunk.timings ?? live.timings;
  if (Array.isArray(chunk.warnings)) message.warnings.push(...chunk.warnings.map(warningText));
  const progress = chunk.prompt_progress;
  if (progress) live.progress = { done: progress.processed, total: progress.total };
  const choice = chunk.choices?.[0];
  if (!choice) return;
  applyDelta(choice.delta ?? {}, message, live);
  message.finish = choice.finish_reason ?? message.finish;
}

const warningText = (warning) => (typeof warning === "string" ? warning : (warning?.message ?? JSON.stringify(warning)));

function applyDelta(delta, message, live) {
  const reasoning = delta.reasoning_content ?? "";
  const content = delta.content ?? "";
  const calls = delta.tool_calls ?? [];
  if (!reasoning && !content && calls.length === 0) return;
  live.last = performance.now();
  live.first ||= live.last;
  live.pieces++;
  if (reasoning) live.thinkingSince ||= live.last;
  else endThinking(message, live);
  message.reasoning += reasoning;
  message.content += content;
  for (const call of calls) applyCall(call, message);
}

function applyCall(piece, message) {
  const at = piece.index ?? message.calls.length;
  if (!Number.isInteger(at) || at < 0 || at > message.calls.length) throw new ApiError("stream", `The server sent a piece of tool call ${at}, which never began.`);
  const call = (message.calls[at] ??= { id: `call_${at}`, name: "", arguments: "" });
  if (piece.id) call.id = piece.id;
  call.name += piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}

function endThinking(message, live) {
  if (!live.thinkingSince) return;
  message.thinkMs += performance.now() - live.thinkingSince;
  live.thinkingSince = 0;
}

// The server's own speed where it tells it, else measured here: the first token's time is the prompt's.
function statistics(live) {
  if (!live.first) return null;
  const tokens = live.usage?.completion_tokens ?? live.pieces;
  const seconds = (live.last - live.first) / 1000;
  return {
    tokens,
    estimated: live.usage?.completion_tokens === undefined,
    rate: live.timings?.predicted_per_second || (tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null),
    first: live.first - live.started,
    prompt: live.usage?.prompt_tokens ?? null,
    cached: live.usage?.prompt_tokens_details?.cached_tokens ?? null,
  };
}
