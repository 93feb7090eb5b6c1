// What models write: Markdown, and attempts to be more than text.

import assert from "node:assert/strict";
import { answers, ask, check, page, scripted, shot, users } from "./harness.mjs";
import { ATTACK, MARKDOWN } from "./scripts.mjs";

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

/** What the page's Markdown makes of texts: HTML, as the browser spells the nodes. */
const markdown = (texts) =>
  page.evaluate(async (list) => {
    const { Markdown } = await import(new URL("page/markdown.js", location.href));
    return list.map((text) => {
      const view = new Markdown();
      view.update(text);
      return view.element.innerHTML;
    });
  }, texts);

const LINK = 'target="_blank" rel="noopener noreferrer"';

const MARKDOWN_PAIRS = [
  ["**a *b* c** ***d***", "<p><strong>a <em>b</em> c</strong> <strong><em>d</em></strong></p>"],
  ["2 * 3 * 4, snake_case_name, __init__", "<p>2 * 3 * 4, snake_case_name, <strong>init</strong></p>"],
  ["**never closed, *nor this", "<p>**never closed, *nor this</p>"],
  ["`a *b*` and ``c ` d`` and `open", "<p><code>a *b*</code> and <code>c ` d</code> and `open</p>"],
  ["\\*plain\\* \\<b>", "<p>*plain* &lt;b&gt;</p>"],
  ["one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"],
  ["- a\n- b\n\n- c", "<ul><li><p>a</p></li><li><p>b</p></li><li><p>c</p></li></ul>"],
  ["3. a\n   - b\n     - c\n4. d", '<ol start="3"><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ol>'],
  ["> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"],
  ["# A #\n###### B\n---", "<h2>A</h2><h6>B</h6><hr>"],
  ["[a](https://e.org/x_y) <https://e.org>", `<p><a href="https://e.org/x_y" title="https://e.org/x_y" ${LINK}>a</a> <a href="https://e.org/" title="https://e.org/" ${LINK}>https://e.org</a></p>`],
  ["See https://e.org/a(b), or [x](javascript:y).", `<p>See <a href="https://e.org/a(b)" title="https://e.org/a(b)" ${LINK}>https://e.org/a(b)</a>, or [x](javascript:y).</p>`],
  ["[https://e.org](https://e.org)", `<p><a href="https://e.org/" title="https://e.org/" ${LINK}>https://e.org</a></p>`],
  ["[](<javascript:x>) [a](//e.org) [b](JaVaScRiPt:x) [c](\u0001javascript:x)", "<p>[](&lt;javascript:x&gt;) [a](//e.org) [b](JaVaScRiPt:x) [c](\u0001javascript:x)</p>"],
  ["$$a_1 * b_2$$ and \\(c*d*e\\)", '<p><code class="math">$$a_1 * b_2$$</code> and <code class="math">\\(c*d*e\\)</code></p>'],
  ["a<br>b & c &amp; d", "<p>a<br>b &amp; c &amp;amp; d</p>"],
];

check("Markdown: what is written and what is shown", async () => {
  const shown = await markdown(MARKDOWN_PAIRS.map(([text]) => text));
  MARKDOWN_PAIRS.forEach(([text, html], at) => assert.equal(shown[at], html, text));
});

check("Markdown: cut anywhere, an answer ends the same", async () => {
  const same = await page.evaluate(async (text) => {
    const { Markdown } = await import(new URL("page/markdown.js", location.href));
    const whole = new Markdown();
    whole.update(text);
    const grown = new Markdown();
    for (let end = 1; end <= text.length; end++) grown.update(text.slice(0, end));
    return grown.element.innerHTML === whole.element.innerHTML;
  }, MARKDOWN + ATTACK);
  assert.ok(same);
});

check("Markdown: long and odd texts are shown to their end", async () => {
  const long = (piece) => piece.repeat(60_000 / piece.length);
  const odd = ["a\n", "*a ", "**a _b ", "[", "[a](", "![a](http://x/ ", "> ", "> > \n", "`a``", "\\(", "- ", "- a\n", "|", "a|b\n-|-\n", "\n", "#", "```\n/*", "<br>", "https://a.b/((", "\ud800"].map((piece) => long(piece) + "\n\nEND");
  const deep = Array.from({ length: 400 }, (_, at) => " ".repeat(at) + "- x").join("\n") + "\n\nEND";
  const shown = await markdown([...odd, deep]);
  shown.forEach((html, at) => assert.ok(html.includes("END"), `text ${at}`));
});
