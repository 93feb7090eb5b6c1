// A server that speaks the protocol of `basert serve` with scripted answers, for the tests of the page.
// `npm run mock` starts it alone, to look at the page by hand.

import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { scripts } from "./scripts.mjs";

const PAGE = new URL("../../crates/server/src/page/", import.meta.url);

// The table and the policy are the server's own: read from its source, so that a file which it forgets is missing here too.
function readTable() {
  const source = readFileSync(new URL("mod.rs", PAGE), "utf8");
  const policy = /CONTENT_SECURITY_POLICY: &str = "([^"]+)"/.exec(source)[1].replace(/\\\n\s*/g, "");
  const files = new Map();
  for (const [, path, type, name] of source.matchAll(/file\("([^"]+)", (SCRIPT|"[^"]+"), include_str!\("([^"]+)"\)\)/g)) {
    const contentType = type === "SCRIPT" ? "text/javascript; charset=utf-8" : type.slice(1, -1);
    files.set(path, { contentType, url: new URL(name, PAGE) });
  }
  return { policy, files };
}

const MODELS = ["toy-hybrid-4b", "smollm2-135m"];
const CAPABILITIES = { chat: true, thinking: true, tools: true, context: 8192, slots: 4, k_type: "q8", v_type: "q4", page_tokens: 64 };
const PROPS = {
  default_generation_settings: { n_ctx: 8192, params: { temperature: 0.7, top_k: 40, top_p: 0.9, min_p: 0, repeat_penalty: 1, max_tokens: null } },
  total_slots: 4,
  model_path: "toy-hybrid-4b.base",
  chat_template: "{% for message in messages %}…",
  build_info: "basert 0.1.0",
  k_type: "q8",
  v_type: "q4",
  engine: { isa: "avx512", threads: 8, arch: "qwen35", kv_bytes_per_token: 6656, memory: { kv: 218103808, total: 2713452544 } },
};

class Mock {
  constructor() {
    Object.assign(this, { ...readTable(), requests: [], bodies: [], aborted: 0, key: null, models: MODELS.slice(0, 1) });
    this.server = createServer((request, response) => this.handle(request, response).catch(() => response.destroy()));
  }

  listen(port = 0) {
    return new Promise((resolve) => this.server.listen(port, "127.0.0.1", () => resolve(this.server.address().port)));
  }

  close() {
    this.server.closeAllConnections();
    return new Promise((resolve) => this.server.close(resolve));
  }

  async handle(request, response) {
    const { pathname } = new URL(request.url, "http://mock");
    this.requests.push(pathname);
    const file = this.files.get(pathname);
    if (file) return this.page(file, response);
    if (pathname === "/health") return json(response, 200, { status: "ok" });
    if (this.key && request.headers.authorization !== `Bearer ${this.key}`) {
      return refuse(response, 401, { message: "a valid API key is needed: send `Authorization: Bearer KEY`", code: "invalid_api_key" });
    }
    if (pathname === "/v1/models") return json(response, 200, { object: "list", data: this.models.map((id) => ({ id, object: "model", capabilities: CAPABILITIES })) });
    if (pathname === "/props") return json(response, 200, PROPS);
    if (pathname === "/v1/chat/completions" && request.method === "POST") return this.chat(request, response);
    return refuse(response, 404, { message: `no such path: ${pathname}` });
  }

  page({ contentType, url }, response) {
    response.writeHead(200, { "Content-Type": contentType, "Content-Security-Policy": this.policy, "X-Content-Type-Options": "nosniff" }).end(readFileSync(url));
  }

  async chat(request, response) {
    const body = JSON.parse(await text(request));
    this.bodies.push(body);
    const last = body.messages.at(-1);
    const script = last.role === "tool" ? scripts.result(last) : pick(last.content);
    if (script.status) return refuse(response, script.status, script.error, script.headers);
    response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store", "x-request-id": "req-mock" });
    let open = true;
    response.on("close", () => {
      if (!response.writableEnded && open) this.aborted++;
      open = false;
    });
    await this.play(script, body, response, () => open);
  }

  async play(script, body, response, isOpen) {
    const send = (chunk) => response.write(`data: ${JSON.stringify({ id: "chatcmpl-mock", object: "chat.completion.chunk", model: body.model, ...chunk })}\n\n`);
    const delta = (delta, finish_reason = null) => send({ choices: [{ index: 0, delta, finish_reason }] });
    delta({ role: "assistant", content: "" });
    for (const [kind, value, ms = 12] of script.steps) {
      if (!isOpen()) return;
      if (kind === "comment") response.write(`: ${value}\n\n`);
      if (kind === "delta") delta(value);
      if (kind === "raw") response.write(value);
      if (kind === "cut") return void response.destroy();
      if (ms) await sleep(ms);
    }
    delta({}, script.finish ?? "stop");
    if (body.stream_options?.include_usage) send({ choices: [], usage: script.usage ?? usage(script, body), timings: script.timings });
    response.end("data: [DONE]\n\n");
  }
}

const pick = (content) => (Object.entries(scripts).find(([word]) => content.toLowerCase().startsWith(word))?.[1] ?? scripts.echo)(content);

function usage(script, body) {
  const prompt = Math.ceil(JSON.stringify(body.messages).length / 4);
  const completion = script.steps.filter(([kind]) => kind === "delta").length;
  const cached = body.messages.length > 2 ? Math.floor((prompt * 0.8) / 16) * 16 : 0;
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion, prompt_tokens_details: { cached_tokens: cached } };
}

async function text(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString();
}

function json(response, status, body, headers = {}) {
  response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(JSON.stringify(body));
}

function refuse(response, status, error, headers) {
  json(response, status, { error: { type: "mock_error", param: null, code: null, ...error } }, { "x-request-id": "req-mock", ...headers });
}

export async function startMock(port) {
  const mock = new Mock();
  mock.port = await mock.listen(port);
  mock.url = `http://127.0.0.1:${mock.port}`;
  return mock;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const mock = await startMock(Number(process.env.PORT ?? 8099));
  console.log(`The page with scripted answers: ${mock.url}\nMessages that start a script: ${Object.keys(scripts).join(", ")}`);
}
