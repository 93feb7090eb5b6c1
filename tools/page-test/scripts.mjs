// Scripted answers by the first word of the message. A script is `{steps, finish, usage}` or `{status, error, headers}`;
// a step is `[kind, value, milliseconds afterwards]`.

const pieces = (text) => text.match(/\s*\S+|\s+$/g) ?? [];
const say = (text, ms) => pieces(text).map((content) => ["delta", { content }, ms]);
const think = (text, ms) => pieces(text).map((reasoning_content) => ["delta", { reasoning_content }, ms]);

export const MARKDOWN = `## A short tour

A page is a block of positions with **K and V side by side**, and a cache is *pages in a list*. See [the paper](https://arxiv.org/abs/2309.06180) or https://example.org/paging.

1. Look up the prompt in the tree of pages
   - every page that is there costs nothing
   - the rest is read in chunks of \`512\` tokens
2. Decode one token of every running answer
3. Give back what nobody holds

> Planned is allocated: what the plan says is what the process takes.

| K | V | bytes per token | share of f16 |
|---|---|---:|:---:|
| f16 | f16 | 32,768 | 100 % |
| q8 | q8 | 17,408 | 53 % |
| q8 | q4 | 13,312 | 41 % |

- [x] read the prompt
- [ ] answer it

### In Rust

\`\`\`rust
/// Pages that hold \`tokens\` positions.
pub fn pages(tokens: usize, page: usize) -> usize {
    // A page that has begun counts as a whole one.
    let whole = tokens.div_ceil(page);
    assert!(whole * page >= tokens, "too few pages: {whole}");
    whole
}
\`\`\`

The loss is \\(L = -\\sum_i p_i \\log q_i\\), which is ~~never~~ rarely zero.
`;

export const ATTACK = `<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>

[click](javascript:window.hacked=3) [data](data:text/html,<script>window.hacked=4</script>) ![pic](http://127.0.0.1:9/pixel.png)

<a href="javascript:window.hacked=5">five</a> <svg/onload=window.hacked=6> <https://example.org/"onmouseover="window.hacked=7>

\`\`\`"><img src=x onerror=window.hacked=8>
<b onclick="window.hacked=9">nine</b>
\`\`\`

| <img src=x onerror=window.hacked=10> | b |
|---|---|
| [x](vbscript:window.hacked=11) | [y](https://example.org/"><script>window.hacked=12</script>) |

<iframe srcdoc="<script>parent.hacked=13</script>"></iframe>
`;

const LONG_PROMPT = 8192;
const prefill = Array.from({ length: 17 }, (_, at) => ["comment", `prefill ${at * 512}/${LONG_PROMPT}`, 60]);

function toolSteps() {
  const call = (index, piece) => ["delta", { tool_calls: [{ index, ...piece }] }, 25];
  const argument = (index, text) => text.match(/.{1,6}/g).map((part) => call(index, { function: { arguments: part } }));
  return [
    ...think("I should look at the weather in both places before answering."),
    ...say("Let me look at both."),
    call(0, { id: "call_a", type: "function", function: { name: "get_weather", arguments: "" } }),
    ...argument(0, '{"city": "Paris", "unit": "celsius"}'),
    call(1, { id: "call_b", type: "function", function: { name: "get_weather", arguments: "" } }),
    ...argument(1, '{"city": "Reykjavík", "unit": "celsius"}'),
  ];
}

const plain = (word, count, ms) => ({ steps: Array.from({ length: count }, (_, at) => ["delta", { content: `${word}${at} ` }, ms]) });

export const scripts = {
  thinking: () => ({ steps: [...think("The user greets me. A short and friendly answer is best; nothing has to be **looked up**.", 40), ...say("Hello! How can I help you today?")] }),
  markdown: () => ({ steps: say(MARKDOWN, 6) }),
  xss: () => ({ steps: [...think(ATTACK, 1), ...say(ATTACK, 1)] }),
  tools: () => ({ steps: toolSteps(), finish: "tool_calls" }),
  halfcall: () => ({ steps: [["delta", { tool_calls: [{ index: 0, id: "call_c", function: { name: "get_weather", arguments: '{"city": "Par' } }] }]], finish: "length" }),
  slow: () => ({ steps: [...prefill, ...say("That was a long prompt.")], usage: { prompt_tokens: LONG_PROMPT, completion_tokens: 6, prompt_tokens_details: { cached_tokens: 0 } } }),
  quiet: () => ({ steps: [["comment", "", 1500], ...say("Here I am.")] }),
  endless: () => plain("word", 2000, 10),
  fast: () => ({ steps: Array.from({ length: 4000 }, (_, at) => ["delta", { content: `w${at} ` }, at % 8 ? 0 : 1]) }),
  length: () => ({ steps: say("This goes on and"), finish: "length" }),
  cut: () => ({ steps: [...say("The beginning of an answer"), ["cut"]] }),
  broken: () => ({ steps: [...say("Some words, then"), ["raw", 'data: {"error": {"message": "the engine stopped", "code": "engine_failed"}}\n\n', 200], ["cut"]] }),
  garbage: () => ({ steps: [["raw", "data: <html>\n\n", 200]] }),
  error400: () => ({ status: 400, error: { message: "the prompt has 9000 tokens, which leaves no room for an answer in the context of 8192 tokens; shorten it, or start the server with a larger --max-context", code: "context_length_exceeded" } }),
  error429: () => ({ status: 429, headers: { "Retry-After": "3" }, error: { message: "too many requests; try again in 3 s", code: "rate_limit_exceeded" } }),
  error500: () => ({ status: 500, error: { message: "the engine failed: out of pages" } }),
  result: ({ content }) => ({ steps: say(`The tool said: ${content}`) }),
  echo: (content) => ({ steps: say(`You said: ${content}`) }),
};
