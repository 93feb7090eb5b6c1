// Errors: what they say, what they keep, how one goes on.

import assert from "node:assert/strict";
import { answers, ask, done, goAway, lastAnswer, mock, notice, page, scripted, send, shot, users } from "./harness.mjs";

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
  const comeBack = await goAway();
  await send("anyone there");
  await notice().getByText("The server is away").waitFor();
  await shot("away");
  await comeBack();
  await notice().getByText("The server is back").waitFor({ timeout: 10_000 });
  assert.equal(await page.locator("#light.on").count(), 0);
  await page.keyboard.press("Enter");
  await lastAnswer().getByText("You said: anyone there").waitFor();
  await page.locator("#light.on").waitFor({ state: "attached" });
  await done();
});

scripted("a full storage is said, and the chat goes on", async () => {
  await page.evaluate(() => {
    for (let size = 2 ** 22; size > 0; size >>= 1) {
      try {
        localStorage.setItem(`filler${size}`, "x".repeat(size));
      } catch {
        // This much does not fit any more.
      }
    }
  });
  await ask("hello");
  await notice().getByText("This chat is not kept").waitFor();
  assert.equal(await lastAnswer().textContent(), "You said: hello");
});

scripted("stored nonsense does not break the page", async () => {
  await page.evaluate(() => {
    localStorage.setItem("basert.settings", '{"tools": "[{", "theme": 7, "sampling": null}');
    localStorage.setItem("basert.chat.a", "{");
    localStorage.setItem("basert.chat.b", '{"messages": [{"role": "system", "content": 1}]}');
    localStorage.setItem("basert.chat.c", '{"messages": [{"role": "user", "content": "old"}, {"role": "assistant", "content": "form"}], "updated": 1}');
  });
  await page.reload();
  await ask("hello");
  assert.equal(await lastAnswer().textContent(), "You said: hello");
  await page.getByRole("button", { name: "Chats" }).click();
  await page.locator(".chat-name", { hasText: "old" }).click();
  assert.equal(await lastAnswer().textContent(), "form");
});
