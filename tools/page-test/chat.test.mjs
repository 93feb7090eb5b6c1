// A conversation: keys, streaming, stop, edit, tools, what is kept, what is shown of it.

import assert from "node:assert/strict";
import { answered, answers, ask, base, check, context, done, lastAnswer, mock, page, prompt, scripted, send, shot, stopButton, users } from "./harness.mjs";
import { MARKDOWN } from "./scripts.mjs";

const TOOLS = JSON.stringify([{ name: "get_weather", description: "Weather of a city", parameters: { type: "object", properties: { city: { type: "string" } } } }]);

// Long enough to be seen growing: a small model writes 64 tokens between two frames.
check("an answer streams, ends, and says what it cost", async () => {
  await page.locator("#welcome").waitFor();
  await shot("empty-light");
  await page.evaluate(() => {
    window.lengths = new Set();
    const note = () => window.lengths.add(document.querySelector(".message.running > .markdown")?.textContent.length ?? 0);
    new MutationObserver(note).observe(document.querySelector("#thread"), { subtree: true, childList: true, characterData: true });
  });
  await ask(mock ? "markdown" : "Tell me a story.");
  const lengths = await page.evaluate(() => [...window.lengths]);
  assert.ok(lengths.length >= 4, `the answer was seen with lengths ${lengths.join()}`);
  assert.match(await answers().last().locator(".meta").textContent(), /tok\/s.*tokens.*first after/);
}, { sampling: { max_tokens: 1500, temperature: 0 } });

// A model's answer may be over before the key arrives.
scripted("Enter sends, Shift+Enter breaks the line, Escape stops, the arrow up edits", async () => {
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
  await page.keyboard.type("endless");
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
  await page.reload();
  await answered(() => page.getByRole("button", { name: "Answer it" }).click());
  assert.equal(await lastAnswer().textContent(), "That was a long prompt.");
});

scripted("a question that was never answered goes along with the next one", async () => {
  await send("slow");
  await page.locator(".waiting progress").waitFor();
  await page.keyboard.press("Escape");
  await ask("never mind");
  assert.deepEqual(mock.bodies.at(-1).messages, [{ role: "user", content: "slow\n\nnever mind" }]);
});

scripted("a chat that is deleted while it is answered stays deleted", async () => {
  await send("endless");
  await lastAnswer().getByText("word3").waitFor();
  await page.getByRole("button", { name: "Chats" }).click();
  await page.getByRole("button", { name: "Delete chat: endless" }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.keyboard.press("Escape");
  await done();
  await page.getByRole("button", { name: "Chats" }).click();
  await page.locator("#chat-list").getByText("No chats yet.").waitFor();
  assert.equal(mock.aborted, 1);
});

check("regenerate replaces the answer, undo brings it back", async () => {
  await ask("first question");
  const first = await lastAnswer().textContent();
  await ask("second question");
  await answered(() => answers().first().getByRole("button", { name: "Answer again" }).click());
  assert.equal(await answers().count(), 1);
  await shot("undo");
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
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

scripted("copy gives the source, an edited answer is what the model is told", async () => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const copied = () => page.evaluate(() => navigator.clipboard.readText());
  await ask("markdown");
  await answers().last().getByRole("button", { name: "Copy code" }).click();
  assert.match(await copied(), /^\/\/\/ Pages that hold `tokens`[^]*whole\n}$/);
  await answers().last().getByRole("button", { name: "Copy answer" }).click();
  assert.equal(await copied(), MARKDOWN);
  await answers().last().getByRole("button", { name: "Edit answer" }).click();
  await page.locator(".editor textarea").fill("something **else**");
  await page.getByRole("button", { name: "Save" }).click();
  assert.equal(await lastAnswer().locator("strong").textContent(), "else");
  await ask("go on");
  assert.equal(mock.bodies.at(-1).messages[1].content, "something **else**");
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
  assert.equal(await page.getByRole("button", { name: "Send results" }).count(), 0);
  await ask("and now");
  assert.ok(mock.bodies.at(-1).messages.every((message) => !message.tool_calls));
});

scripted("a long prompt shows how far it is read, a silent server how long it takes", async () => {
  await send("slow");
  await page.locator(".waiting").getByText(/Reading the prompt: [1-7],\d+ of 8,192 tokens/).waitFor();
  await shot("prefill");
  await done();
  await send("quiet");
  await page.locator(".waiting").getByText("Waiting for the first token: 1 s").waitFor();
  await done();
  assert.match(await answers().last().locator(".meta").textContent(), /first after 1\.\d s/);
});

scripted("cache hits are said", async () => {
  await ask("a first message that is long enough to fill a page of the cache with its tokens, all of them");
  await ask("a second one");
  assert.match(await answers().last().locator(".meta").textContent(), /prompt \d+, \d+ cached/);
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

scripted("four thousand quick tokens arrive whole, and the page can be used meanwhile", async () => {
  await send("fast");
  await lastAnswer().getByText("w100 ").waitFor();
  await prompt().pressSequentially("typed while it runs");
  assert.equal(await prompt().inputValue(), "typed while it runs");
  await done();
  const expected = Array.from({ length: 4000 }, (_, at) => `w${at}`).join(" ");
  assert.ok((await lastAnswer().textContent()) === expected);
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
