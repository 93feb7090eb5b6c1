// What the tests share: a browser that drives the page against scripted answers, or with BASE_URL against a real server
// (then the tests that need a script are skipped).
//
// BASE_URL   a running `basert serve`, e.g. http://127.0.0.1:8080
// API_KEY    its key, if it wants one
// CHROMIUM   the browser's path (default /usr/bin/chromium)
// SHOTS      a folder for screenshots (default: none are taken)

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { chromium } from "playwright-core";
import { startMock } from "./mock.mjs";

const { BASE_URL, API_KEY, CHROMIUM = "/usr/bin/chromium", SHOTS } = process.env;

/** What the current test works with; `mock` is null against a real server. */
export let mock, base, page, context;
let browser, foreign, problems;

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

/**
 * A test in a fresh browser profile. It fails on a request to elsewhere, an uncaught error, or a breach of the policy.
 * `sampling` is the page's setting against a real server, where answers are short unless told otherwise.
 */
export function check(name, run, { scripted = false, options = {}, sampling = { max_tokens: 64 } } = {}) {
  test(name, { skip: scripted && BASE_URL ? "needs scripted answers" : false, timeout: 120_000 }, async () => {
    await openPage(options, sampling);
    try {
      await run();
      assert.deepEqual(foreign, [], "requests that leave the origin");
      assert.deepEqual(problems, [], "errors on the page");
    } finally {
      await context.close();
    }
  });
}

export const scripted = (name, run, options = {}) => check(name, run, { scripted: true, options });

async function openPage(options, sampling) {
  context = await browser.newContext({ viewport: { width: 1100, height: 800 }, colorScheme: "light", ...options });
  [foreign, problems] = [[], []];
  context.on("request", (request) => new URL(request.url()).origin === new URL(base).origin || foreign.push(request.url()));
  page = await context.newPage();
  page.on("pageerror", (error) => problems.push(error.message));
  // Answers with an error status are logged by the browser too; those are wanted here.
  page.on("console", (message) => message.type() === "error" && !message.text().startsWith("Failed to load resource") && problems.push(message.text()));
  if (BASE_URL) await page.addInitScript((settings) => (localStorage["basert.settings"] ??= settings), JSON.stringify({ sampling }));
  if (API_KEY) await page.addInitScript((key) => sessionStorage.setItem("basert.key", JSON.stringify(key)), API_KEY);
  await page.goto(base);
  await page.locator("#light.on").waitFor({ state: "attached" });
}

export const prompt = () => page.locator("#prompt");
export const users = () => page.locator(".message.user");
export const answers = () => page.locator(".message.assistant");
export const lastAnswer = () => answers().last().locator("> .markdown");
export const notice = () => page.locator(".notice");
export const running = () => page.locator(".message.running");
export const stopButton = () => page.getByRole("button", { name: "Stop", exact: true });

export async function send(text) {
  await prompt().fill(text);
  await prompt().press("Enter");
}

export async function done() {
  await page.getByRole("button", { name: "Send", exact: true }).waitFor({ timeout: 60_000 });
}

export async function ask(text) {
  await answered(() => send(text));
}

/** Does something that starts an answer, and waits for its end. Sees answers that are over before a look at the page would find them. */
export async function answered(act) {
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

export async function shot(name) {
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/${name}.png` });
}

/** The server ends, and `comeBack` starts another one at its address. */
export async function goAway() {
  const { port } = mock;
  await mock.close();
  return async function comeBack() {
    mock = await startMock(port);
  };
}
