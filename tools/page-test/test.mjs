// Drives the page in Chromium: against scripted answers, or with BASE_URL against a real server (then the tests that need a script are skipped).
//
// BASE_URL   a running `basert serve`, e.g. http://127.0.0.1:8080
// API_KEY    its key, if it wants one
// CHROMIUM   the browser's path (default /usr/bin/chromium)
// SHOTS      a folder for screenshots (default: none are taken)

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { chromium } from "playwright-core";
import { startMock } from "./mock.mjs";
import { ATTACK } from "./scripts.mjs";

const { BASE_URL, API_KEY, CHROMIUM = "/usr/bin/chromium", SHOTS } = process.env;
const PHONE = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 };
const TOOLS = JSON.stringify([{ name: "get_weather", description: "Weather of a city", parameters: { type: "object", properties: { city: { type: "string" } } } }]);

let browser, mock, base, page, context, foreign, problems;

before(async () => {
  mock = BASE_URL ? null : await startMock();
  base = BASE_URL ?? mock.url;
  browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
});

after(async () => {
  await browser?.close();
  await mock?.close();
});

beforeEach(() => {
  if (mock) Object.assign(mock, { key: null, models: ["toy-hybrid-4b"], bodies: [], aborted: 0 });
});

/** A test in a fresh browser profile. It fails on a request to elsewhere, an uncaught error, or a breach of the policy. */
function check(name, run, { scripted = false, options = {} } = {}) {
  test(name, { skip: scripted && BASE_URL ? "needs scripted answers" : false, timeout: 120_000 }, async () => {
    await openPage(options);
    try {
      await run();
      assert.deepEqual(foreign, [], "requests that leave the origin");
      assert.deepEqual(problems, [], "errors on the page");
    } finally {
      await context.close();
    }
  });
}

const scripted = (name, run, options = {}) => check(name, run, { scripted: true, options });

async function openPage(options) {
  context = await browser.newContext({ viewport: { width: 1100, height: 800 }, colorScheme: "light", ...options });
  [foreign, problems] = [[], []];
  page = await context.newPage();
  page.on("request", (request) => new URL(request.url()).origin === new URL(base).origin || foreign.push(request.url()));
  page.on("pageerror", (error) => problems.push(error.message));
  // Answers with an error status are logged by the browser too; those are wanted here.
  page.on("console", (message) => message.type() === "error" && !message.text().startsWith("Failed to load resource") && problems.push(message.text()));
  if (API_KEY) await page.addInitScript((key) => sessionStorage.setItem("basert.key", JSON.stringify(key)), API_KEY);
  await page.goto(base);
  await page.locator("#light.on").waitFor({ state: "attached" });
}

const prompt = () => page.locator("#prompt");
const users = () => page.locator(".message.user");
const answers = () => page.locator(".message.assistant");
const lastAnswer = () => answers().last().locator("> .markdown");
const notice = () => page.locator(".notice");
const running = () => page.locator(".message.running");
const stopButton = () => page.getByRole("button", { name: "Stop", exact: true });

async function send(text) {
  await prompt().fill(text);
  await prompt().press("Enter");
}

async function done() {
  await page.getByRole("button", { name: "Send", exact: true }).waitFor({ timeout: 60_000 });
}

async function ask(text) {
  await answered(() => send(text));
}

/** Does something that starts an answer, and waits for its end. Sees answers that are over before a look at the page would find them. */
async function answered(act) {
  await page.evaluate(() => {
    const seen = (resolve) => (_, observer) => {
      if (!document.querySelector(".message.running")) return;
      observer.disconnect();
      resolve();
    };
    window.answerBegan = new Promise((resolve) => new MutationObserver(seen(resolve)).observe(document.querySelector("#thread"), { subtree: true, childList: true, attributes: true }));
  });
  await act();
  await page.evaluate(() => window.answerBegan);
  await done();
}

async function shot(name) {
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/${name}.png` });
}

const overflow = () => page.evaluate(() => Math.max(document.documentElement.scrollWidth - innerWidth, document.querySelector("#scroll").scrollWidth - document.querySelector("#scroll").clientWidth));
const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

/** Contrast by WCAG of an element's text with the first bed behind it that is not transparent. */
const contrast = (selector) =>
  page.locator(selector).first().evaluate((element) => {
    const channels = (color) => color.match(/[\d.]+/g).map(Number);
    const light = (color) => channels(color).slice(0, 3).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4)).reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    let bed = element;
    while (channels(getComputedStyle(bed).backgroundColor)[3] === 0) bed = bed.parentElement;
    const [low, high] = [light(getComputedStyle(element).color), light(getComputedStyle(bed).backgroundColor)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  });

check("an answer streams, ends, and says what it cost", async () => {
  await page.locator("#welcome").waitFor();
  await shot("empty-light");
  await send(mock ? "endless" : "Count from one to thirty in words.");
  await page.waitForFunction(() => document.querySelector(".message.assistant > .markdown")?.textContent.length > 20);
  const early = (await lastAnswer().textContent()).length;
  await page.waitForFunction((length) => document.querySelector(".message.assistant > .markdown").textContent.length > length, early);
  assert.equal(await running().count(), 1);
  if (mock) await stopButton().click();
  await done();
  const meta = await answers().last().locator(".meta").textContent();
  assert.match(meta, /tok\/s.*tokens.*first after/);
});

check("Enter sends, Shift+Enter breaks the line, Escape stops, the arrow up edits", async () => {
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
  await page.keyboard.type(mock ? "endless" : "Write a long poem about");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("two lines");
  assert.match(await prompt().inputValue(), /\n/);
  assert.equal(await users().count(), 0);
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".message.assistant > .markdown")?.textContent.length > 5);
  await page.keyboard.press("Escape");
  await done();
  assert.match(await answers().last().locator(".note").textContent(), /Stopped/);
  const kept = await lastAnswer().textContent();
  assert.ok(kept.length > 5);
  await page.keyboard.press("ArrowUp");
  const editor = page.locator(".editor textarea");
  assert.match(await editor.inputValue(), /two lines/);
  await page.keyboard.press("Escape");
  assert.equal(await page.locator(".editor").count(), 0);
  assert.equal(await lastAnswer().textContent(), kept);
});

scripted("stop ends the request on the server", async () => {
  await send("endless");
  await lastAnswer().getByText("word3").waitFor();
  await stopButton().click();
  await done();
  await page.waitForTimeout(200);
  assert.equal(mock.aborted, 1);
});

scripted("stop while the prompt is read leaves no empty answer", async () => {
  await send("slow");
  await page.locator(".waiting progress").waitFor();
  await page.keyboard.press("Escape");
  await done();
  assert.equal(await answers().count(), 0);
  assert.equal(await users().count(), 1);
});

check("tab goes through the page in the order in which it is read", async () => {
  await ask("hello");
  await page.locator(".skip").focus();
  const order = [];
  for (let at = 0; at < 15; at++) {
    await page.keyboard.press("Tab");
    order.push(await page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.id ?? document.activeElement.textContent));
  }
  const wanted = ["New chat", "Chats", "Theme: system", "Settings", "Copy message", "Edit message", "Copy answer", "Answer again", "Edit answer", "Message", "thinking", "Send"];
  const found = order.filter((name) => wanted.includes(name));
  assert.deepEqual(found, wanted.filter((name) => name !== "Send"), `order was ${order.join(", ")}`);
});

check("every button and field has a name", async () => {
  await ask("hello");
  const nameless = await page.evaluate(() => [...document.querySelectorAll("button, input, textarea, select, a")].filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length)).map((node) => node.outerHTML));
  assert.deepEqual(nameless, []);
});

check("regenerate replaces the answer, undo brings it back", async () => {
  await ask("first question");
  const first = await lastAnswer().textContent();
  await ask("second question");
  await answered(() => answers().first().getByRole("button", { name: "Answer again" }).click());
  assert.equal(await answers().count(), 1);
  await shot("undo");
  await page.getByRole("button", { name: "Undo" }).click();
  assert.equal(await answers().count(), 2);
  assert.equal(await answers().first().locator("> .markdown").textContent(), first);
});

check("an edited message is asked again, and what followed is gone", async () => {
  await ask("one");
  await ask("two");
  await users().first().getByRole("button", { name: "Edit message" }).click();
  await page.locator(".editor textarea").fill("three");
  await shot("edit");
  await answered(() => page.keyboard.press("Enter"));
  assert.equal(await users().count(), 1);
  assert.equal(await users().locator(".bubble").textContent(), "three");
  if (mock) assert.equal(await lastAnswer().textContent(), "You said: three");
  if (mock) assert.deepEqual(mock.bodies.at(-1).messages, [{ role: "user", content: "three" }]);
});

check("reload keeps the conversation and the draft", async () => {
  await ask("remember me");
  const answer = await lastAnswer().textContent();
  await prompt().fill("half a thought");
  await page.reload();
  await page.locator("#light.on").waitFor({ state: "attached" });
  assert.equal(await users().locator(".bubble").textContent(), "remember me");
  assert.equal(await lastAnswer().textContent(), answer);
  assert.equal(await prompt().inputValue(), "half a thought");
});

scripted("reload in the middle of an answer keeps what had arrived", async () => {
  await send("endless");
  await lastAnswer().getByText("word120").waitFor();
  await page.reload();
  await page.locator("#light.on").waitFor({ state: "attached" });
  assert.match(await lastAnswer().textContent(), /word0 .*word100/);
  assert.match(await answers().locator(".note").textContent(), /Stopped|Incomplete/);
});

check("chats: a new one, back to the old one, deletion", async () => {
  await ask("chat one");
  await page.getByRole("button", { name: "New chat" }).click();
  assert.equal(await users().count(), 0);
  await ask("chat two");
  await page.getByRole("button", { name: "Chats" }).click();
  assert.deepEqual(await page.locator(".chat-name span").allTextContents(), ["chat two", "chat one"]);
  await shot("chats");
  await page.locator(".chat-name", { hasText: "chat one" }).click();
  assert.equal(await users().locator(".bubble").textContent(), "chat one");
  await page.getByRole("button", { name: "Chats" }).click();
  await page.getByRole("button", { name: "Delete chat: chat one" }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.keyboard.press("Escape");
  assert.equal(await users().count(), 0);
  await page.reload();
  await page.getByRole("button", { name: "Chats" }).click();
  assert.deepEqual(await page.locator(".chat-name span").allTextContents(), ["chat two"]);
});

for (const colorScheme of ["light", "dark"]) {
  scripted(`markdown and thinking, ${colorScheme}`, async () => {
    await ask("markdown");
    assert.equal(await lastAnswer().locator("h3").textContent(), "A short tour");
    assert.equal(await lastAnswer().locator("table tbody tr").count(), 3);
    assert.equal(await lastAnswer().locator("ol > li > ul > li").count(), 2);
    assert.equal(await lastAnswer().locator("li.task input:checked").count(), 1);
    assert.match(await lastAnswer().locator("pre code").textContent(), /^\/\/\/ Pages that hold `tokens`[^]*whole\n}$/);
    await shot(`markdown-${colorScheme}`);
    await page.evaluate(() => (document.querySelector("#scroll").scrollTop = 0));
    await page.locator("#latest").waitFor();
    await shot(`markdown-top-${colorScheme}`);
    await ask("thinking");
    const thinking = answers().last().locator("details.thinking");
    assert.match(await thinking.locator("summary").textContent(), /^Thought for \d/);
    assert.equal(await thinking.getAttribute("open"), null);
    await thinking.locator("summary").click();
    await thinking.locator("strong").getByText("looked up").waitFor();
    await shot(`thinking-${colorScheme}`);
    for (const selector of [".bubble", ".markdown p", ".meta span", ".code-comment", ".code-word", ".code-string", ".chip", "a[href^=http]", ".thinking summary", "button.send"]) {
      const ratio = selector === "button.send" ? 21 : await contrast(selector);
      assert.ok(ratio >= 4.5, `${selector} has a contrast of ${ratio.toFixed(2)}`);
    }
  }, { colorScheme });
}

check("the theme follows the system, can be chosen, and is kept", async () => {
  const [light] = [await background()];
  await page.emulateMedia({ colorScheme: "dark" });
  const dark = await background();
  assert.notEqual(light, dark);
  await shot("empty-dark");
  await page.getByRole("button", { name: "Theme: system" }).click();
  assert.equal(await background(), light);
  await page.reload();
  assert.equal(await background(), light);
  await page.getByRole("button", { name: "Theme: light" }).click();
  assert.equal(await background(), dark);
});

scripted("XSS: what a model writes stays text", async () => {
  await ask("xss");
  await answers().last().locator("details.thinking summary").click();
  await page.locator(".thinking .markdown p").first().waitFor();
  const found = await page.evaluate(() => ({
    hacked: window.hacked,
    elements: document.querySelectorAll("#thread :is(img, script, iframe, b, svg:not(.icon))").length,
    handlers: [...document.querySelectorAll("#thread *")].flatMap((node) => [...node.attributes]).filter((attribute) => attribute.name.startsWith("on")).length,
    links: [...document.querySelectorAll("#thread a")].map((link) => link.protocol),
    text: document.querySelector(".message.assistant > .markdown").textContent,
  }));
  assert.equal(found.hacked, undefined);
  assert.equal(found.elements, 0);
  assert.equal(found.handlers, 0);
  assert.ok(found.links.length > 0 && found.links.every((protocol) => protocol === "https:" || protocol === "http:"), found.links.join());
  for (const part of ["<img src=x onerror=", "window.hacked=2</script>", "javascript:window.hacked=3", "<svg/onload=window.hacked=6>", '<b onclick="window.hacked=9">', "<iframe srcdoc="]) {
    assert.ok(found.text.includes(part), `${part} is shown as it was written`);
  }
  await shot("xss");
});

scripted("XSS: what a user, a tool or an error says stays text", async () => {
  await ask(ATTACK);
  await users().first().getByRole("button", { name: "Edit message" }).click();
  await page.keyboard.press("Escape");
  await page.evaluate((text) => {
    const message = { role: "assistant", content: "", reasoning: "", thinkMs: 0, warnings: [text], finish: text, stats: null, calls: [{ id: "a", name: text, arguments: JSON.stringify({ text }), result: text }] };
    localStorage.setItem("basert.chat.x", JSON.stringify({ id: "x", updated: Date.now() + 1e6, messages: [{ role: "user", content: text }, message] }));
    sessionStorage.setItem("basert.current", '"x"');
  }, ATTACK);
  // The page saves its own chat when it is left, so the tab's choice is made again.
  await page.addInitScript(() => sessionStorage.setItem("basert.current", '"x"'));
  await page.reload();
  await page.locator(".call").waitFor();
  await page.getByRole("button", { name: "Chats" }).click();
  const found = await page.evaluate(() => [window.hacked, document.querySelectorAll("#thread :is(img, script, iframe, b), dialog :is(img, script, iframe)").length]);
  assert.deepEqual(found, [undefined, 0]);
});

scripted("tool calls are shown, their results sent, and the whole history goes back", async () => {
  await page.getByRole("button", { name: "Settings" }).click();
  await page.locator("#declared").fill("[{");
  await page.getByRole("button", { name: "Save" }).click();
  await page.locator("#tools-problem").getByText("This is not JSON").waitFor();
  await page.locator("#declared").fill(TOOLS);
  await page.locator("#system").fill("Be brief.");
  await page.locator('[name="temperature"]').fill("0.2");
  await shot("settings");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("button", { name: "Thinking: default" }).click();
  await ask("tools");
  assert.deepEqual(await page.locator(".call-name").allTextContents(), ["get_weather", "get_weather"]);
  assert.equal(await page.locator(".call pre code").first().textContent(), '{\n  "city": "Paris",\n  "unit": "celsius"\n}');
  const first = mock.bodies.at(-1);
  assert.equal(first.tools[0].function.name, "get_weather");
  assert.equal(first.temperature, 0.2);
  assert.deepEqual(first.chat_template_kwargs, { enable_thinking: true });
  await page.getByLabel("Result of get_weather").first().fill("21 degrees");
  await page.getByLabel("Result of get_weather").last().fill("9 degrees");
  await shot("tools");
  await page.getByRole("button", { name: "Send results" }).click();
  await lastAnswer().getByText("The tool said: 9 degrees").waitFor();
  const roles = mock.bodies.at(-1).messages.map((message) => message.role);
  assert.deepEqual(roles, ["system", "user", "assistant", "tool", "tool"]);
  const [, , call, result] = mock.bodies.at(-1).messages;
  assert.equal(call.tool_calls[0].function.arguments, '{"city": "Paris", "unit": "celsius"}');
  assert.match(call.reasoning_content, /^I should look/);
  assert.deepEqual(result, { role: "tool", tool_call_id: "call_a", content: "21 degrees" });
  await done();
});

scripted("a call that was cut off is shown and not sent back", async () => {
  await ask("halfcall");
  await page.locator(".call-state").getByText("Cut off").waitFor();
  assert.match(await answers().locator(".note").textContent(), /limit of tokens/);
  await ask("and now");
  assert.ok(mock.bodies.at(-1).messages.every((message) => !message.tool_calls));
});

scripted("a long prompt shows how far it is read, a silent server how long it takes", async () => {
  await send("slow");
  await page.locator(".waiting").getByText(/Reading the prompt: [1-7],\d+ of 8,192 tokens/).waitFor();
  await shot("prefill");
  await done();
  await send("quiet");
  await page.locator(".waiting").getByText("Reading the prompt: 1 s").waitFor();
  await done();
  assert.match(await answers().last().locator(".meta").textContent(), /first after 1\.\d s/);
});

scripted("cache hits are said", async () => {
  await ask("a first message that is long enough to fill a page of the cache with its tokens, all of them");
  await ask("a second one");
  assert.match(await answers().last().locator(".meta").textContent(), /prompt \d+, \d+ cached/);
});

scripted("401: the key is asked for where it is missed, kept for the tab, and works", async () => {
  mock.key = "secret";
  await send("hello");
  await notice().getByText("This server wants an API key").waitFor();
  await shot("key");
  await page.getByPlaceholder("API key").fill("wrong");
  await page.getByRole("button", { name: "Use key" }).click();
  await notice().getByText("This server wants an API key").waitFor();
  await page.getByPlaceholder("API key").fill("secret");
  await page.getByRole("button", { name: "Use key" }).click();
  await lastAnswer().getByText("You said: hello").waitFor();
  await done();
  await page.reload();
  await page.locator("#light.on").waitFor({ state: "attached" });
  await ask("again");
  assert.equal(await page.evaluate(() => localStorage.getItem("basert.key")), null);
});

scripted("401 before anything was asked", async () => {
  mock.key = "secret";
  await page.reload();
  await notice().locator("strong", { hasText: "wants an API key" }).waitFor();
  await page.getByPlaceholder("API key").fill("secret");
  await page.getByRole("button", { name: "Use key" }).click();
  await page.locator("#kv").getByText("K q8 · V q4").waitFor();
  assert.equal(await notice().count(), 0);
});

scripted("a second tab shows what the first one writes", async () => {
  await ask("from the first tab");
  const second = await context.newPage();
  await second.goto(base);
  await second.locator(".message.assistant", { hasText: "from the first tab" }).waitFor();
  await ask("and once more");
  await second.locator(".message.assistant", { hasText: "and once more" }).waitFor();
  assert.equal(await second.locator(".message").count(), 4);
});

for (const [status, title, detail] of [
  [400, "too long for the model", "8192 tokens"],
  [429, "Too many requests", "Try again in"],
  [500, "The server failed", "out of pages"],
]) {
  scripted(`${status} is explained, and the message stays`, async () => {
    await send(`error${status}`);
    await notice().locator("strong", { hasText: title }).waitFor();
    assert.ok((await notice().textContent()).includes(detail));
    await shot(`error-${status}`);
    assert.equal(await users().count(), 1);
    assert.equal(await answers().count(), 0);
    await users().getByRole("button", { name: "Edit message" }).click();
    await page.locator(".editor textarea").fill("better");
    await page.keyboard.press("Enter");
    await lastAnswer().getByText("You said: better").waitFor();
    assert.equal(await notice().count(), 0);
    await done();
  });
}

for (const [word, title] of [["cut", "The connection broke off"], ["broken", "The answer ended with an error"], ["garbage", "The answer ended with an error"]]) {
  scripted(`an answer that breaks off (${word}) keeps what had arrived`, async () => {
    await send(word);
    await notice().locator("strong", { hasText: title }).waitFor();
    if (word === "garbage") return;
    assert.ok((await lastAnswer().textContent()).length > 10);
    assert.match(await answers().locator(".note").textContent(), /Incomplete/);
    await shot(`broken-${word}`);
  });
}

scripted("the server goes away and comes back", async () => {
  await ask("hello");
  const port = mock.port;
  await mock.close();
  await send("anyone there");
  await notice().getByText("The server is away").waitFor();
  await shot("away");
  mock = await startMock(port);
  await notice().getByText("The server is back").waitFor({ timeout: 10_000 });
  assert.equal(await page.locator("#light.on").count(), 0);
  await page.keyboard.press("Enter");
  await lastAnswer().getByText("You said: anyone there").waitFor();
  await page.locator("#light.on").waitFor({ state: "attached" });
  await done();
});

scripted("several models can be chosen from", async () => {
  mock.models = ["toy-hybrid-4b", "smollm2-135m"];
  await page.reload();
  await page.getByLabel("Model", { exact: true }).selectOption("smollm2-135m");
  await ask("hello");
  assert.equal(mock.bodies.at(-1).model, "smollm2-135m");
  await page.getByRole("button", { name: /facts/ }).click();
  await page.locator("#facts-main").getByText("8,192 tokens").waitFor();
  await page.locator("#facts summary").click();
  await shot("facts");
});

scripted("four thousand quick tokens do not hold the page up", async () => {
  await send("fast");
  await lastAnswer().getByText("w100 ").waitFor();
  const longest = await page.evaluate(async () => {
    let worst = 0;
    let last = performance.now();
    for (let at = 0; at < 60; at++) {
      await new Promise((resolve) => setTimeout(resolve, 10));
      worst = Math.max(worst, performance.now() - last);
      last = performance.now();
    }
    return worst;
  });
  console.log(`longest pause of the page while tokens arrive: ${longest.toFixed(0)} ms`);
  await done();
  assert.ok((await lastAnswer().textContent()).endsWith(" w3999"));
});

scripted("reading back is not disturbed, the end is followed", async () => {
  await ask("markdown");
  await send("endless");
  await lastAnswer().getByText("word50").waitFor();
  const atEnd = () => page.evaluate(() => { const s = document.querySelector("#scroll"); return s.scrollHeight - s.scrollTop - s.clientHeight; });
  assert.ok((await atEnd()) < 60);
  await page.mouse.move(550, 300);
  await page.mouse.wheel(0, -400);
  await page.locator("#latest").waitFor();
  const place = await page.evaluate(() => document.querySelector("#scroll").scrollTop);
  await lastAnswer().getByText("word200").waitFor();
  assert.equal(await page.evaluate(() => document.querySelector("#scroll").scrollTop), place);
  await page.locator("#latest").click();
  assert.ok((await atEnd()) < 60);
  await page.keyboard.press("Escape");
  await done();
});

for (const colorScheme of ["light", "dark"]) {
  check(`a phone does not scroll sideways, ${colorScheme}`, async () => {
    assert.ok((await overflow()) <= 0);
    await shot(`phone-empty-${colorScheme}`);
    await prompt().fill(mock ? "markdown" : "Write a table and a code block.");
    await answered(() => page.getByRole("button", { name: "Send", exact: true }).tap());
    assert.ok((await overflow()) <= 0);
    await shot(`phone-${colorScheme}`);
    await prompt().fill("x".repeat(400) + " https://example.org/" + "y".repeat(300));
    await answered(() => page.getByRole("button", { name: "Send", exact: true }).tap());
    assert.ok((await overflow()) <= 0);
    if (mock) {
      await prompt().fill("tools");
      await page.getByRole("button", { name: "Send", exact: true }).tap();
      await page.getByRole("button", { name: "Send results" }).waitFor();
      assert.ok((await overflow()) <= 0);
      await shot(`phone-tools-${colorScheme}`);
    }
    for (const name of ["Settings", "Chats"]) {
      await page.getByRole("button", { name, exact: true }).tap();
      assert.ok((await overflow()) <= 0);
      await shot(`phone-${name.toLowerCase()}-${colorScheme}`);
      await page.locator("dialog[open] .close").tap();
    }
  }, { options: { ...PHONE, colorScheme } });
}
