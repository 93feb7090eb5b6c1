// How it looks and is operated: light and dark, contrast, focus, names, a phone.

import assert from "node:assert/strict";
import { answered, answers, ask, check, lastAnswer, mock, page, prompt, scripted, shot } from "./harness.mjs";

const PHONE = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 };

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

check("tab goes through the page in the order in which it is read", async () => {
  await ask("hello");
  await page.locator(".skip").focus();
  const order = [];
  for (let at = 0; at < 15; at++) {
    await page.keyboard.press("Tab");
    order.push(await page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.id ?? document.activeElement.textContent));
  }
  const wanted = ["New chat", "Chats", "Theme: system", "Settings", "Copy message", "Edit message", "Copy answer", "Answer again", "Edit answer", "Message", "thinking", "Send"];
  // Nothing can be sent; not every model thinks.
  const absent = ["Send", (await page.locator("#thinking").isHidden()) && "thinking"];
  const found = order.filter((name) => wanted.includes(name));
  assert.deepEqual(found, wanted.filter((name) => !absent.includes(name)), `order was ${order.join(", ")}`);
});

check("every button and field has a name", async () => {
  await ask("hello");
  const nameless = await page.evaluate(() => [...document.querySelectorAll("button, input, textarea, select, a")].filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length)).map((node) => node.outerHTML));
  assert.deepEqual(nameless, []);
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

for (const colorScheme of ["light", "dark"]) {
  check(`a phone does not scroll sideways, ${colorScheme}`, async () => {
    assert.ok((await overflow()) <= 0);
    await shot(`phone-empty-${colorScheme}`);
    await prompt().fill(mock ? "markdown" : "Write a table and a code block.");
    await answered(() => page.getByRole("button", { name: "Send", exact: true }).tap());
    assert.ok((await overflow()) <= 0);
    await shot(`phone-${colorScheme}`);
    if (mock) assert.ok(await page.locator("pre").evaluate((pre) => (pre.scrollLeft = 50) && pre.scrollLeft === 50), "code scrolls in its block");
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
