// Talking to the server: requests, server-sent events, and errors that a person can act upon.

import { readKey } from "./store.js";

/** What went wrong: `kind` is "away", "key", "http", "broken" or "stream". */
export class ApiError extends Error {
  constructor(kind, message, details = {}) {
    super(message);
    Object.assign(this, { kind }, details);
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  const key = readKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("away", `Nothing answers at ${location.origin}.`);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const body = await response.text().catch(() => "");
  const error = parse(body)?.error ?? {};
  const message = (typeof error === "string" ? error : error.message) || body.slice(0, 300) || response.statusText;
  return new ApiError(response.status === 401 ? "key" : "http", message, {
    status: response.status,
    code: error.code,
    requestId: response.headers.get("x-request-id"),
    retryAfter: Number(response.headers.get("retry-after")) || 0,
  });
}

/** JSON of an untrusted text, or undefined. */
export function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export async function getJson(path) {
  const response = await request(path);
  return response.json().catch(() => null);
}

/** Whether the server answers at all. */
export async function isThere() {
  return request("health").then(
    () => true,
    (error) => error.kind !== "away" && error.status !== 502 && error.status !== 504,
  );
}

/** The events of one answer: `{comment}` for a sign of life, `{chunk}` for a piece. Returns at `[DONE]`. */
export async function* chat(body, signal) {
  const headers = { "Content-Type": "application/json", Accept: "text/event-stream" };
  const response = await request("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
    throw new ApiError("stream", "The answer is not an event stream: something other than BaseRT answers at this address.");
  }
  for await (const line of lines(response.body)) {
    if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    yield { chunk: readChunk(data) };
  }
  throw new ApiError("broken", "The connection ended in the middle of the answer.");
}

function readChunk(data) {
  const chunk = parse(data);
  if (!chunk || typeof chunk !== "object") throw new ApiError("stream", `The server sent an event that is not JSON: ${data.slice(0, 120)}`);
  if (chunk.error) throw new ApiError("stream", chunk.error.message ?? String(chunk.error), { code: chunk.error.code });
  return chunk;
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await read(reader);
    if (done) return;
    const parts = (rest + value).split(/\r\n|[\r\n]/);
    rest = parts.pop();
    yield* parts;
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("broken", "The connection was lost in the middle of the answer.");
  }
}
