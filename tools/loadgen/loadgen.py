#!/usr/bin/env python3
"""Load on an OpenAI-compatible server, and what its clients see of it. Python 3.10, no packages.

  loadgen.py URL [--clients 1,2,4,8,16] [--requests N]      closed loop: so many clients, each asking again when it has its answer
  loadgen.py URL --rate 0.5,1,2 [--requests N]              open loop: requests at random times, so many a second, whatever is running
  loadgen.py URL --intrude 8000                             gaps of a running answer while a prompt of so many tokens arrives

Prompts are token ids to /v1/completions, so that their lengths are exact; answers have the same length, whatever is in them. A cold
prompt shares nothing with earlier ones, a warm one was sent before. A gap is the time between two chunks with text of one answer.
Tables are Markdown.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from urllib.parse import urlsplit


class Answer:
    """Times of one answer, in seconds from its request."""

    def __init__(self):
        self.first = None
        self.gaps = []
        self.tokens = 0
        self.cached = 0


class Client:
    """Sends requests to one server."""

    def __init__(self, options):
        where = urlsplit(options.url)
        self.host, self.port, self.key = where.hostname, where.port or 80, options.api_key
        self.only = options.only

    async def lines(self, body, on_line):
        """Posts a request and hands on the lines of the response."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            payload = json.dumps(body).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n"
            key = f"Authorization: Bearer {self.key}\r\n" if self.key else ""
            writer.write(f"{head}{key}Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n".encode() + payload)
            status = (await reader.readline()).decode()
            if " 200 " not in status:
                raise RuntimeError(f"{status.strip()}: {(await reader.read(2000)).decode(errors='replace')}")
            while line := await reader.readline():
                on_line(line)
        finally:
            writer.close()

    async def ask(self, prompt, tokens):
        """One streamed answer."""
        answer, start, last = Answer(), time.perf_counter(), None

        def on_line(line):
            nonlocal last
            if not line.startswith(b"data: {"):
                return
            event = json.loads(line[6:])
            if usage := event.get("usage"):
                answer.tokens = usage["completion_tokens"]
                answer.cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
            if any(choice["text"] for choice in event["choices"]):
                now = time.perf_counter()
                if last is None:
                    answer.first = now - start
                else:
                    answer.gaps.append(now - last)
                last = now

        options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "temperature": 1, "seed": len(prompt)}
        if self.only:
            options["logit_bias"] = {str(self.only + id): 100 for id in range(64)}
        await self.lines({"prompt": prompt, "max_tokens": tokens, **options}, on_line)
        if answer.first is None:
            answer.first = time.perf_counter() - start
        return answer


class Prompts:
    """Prompts of one length, each unlike all others from its first token on."""

    def __init__(self, options, seed):
        self.random, self.length, self.ids = random.Random(seed), options.prompt, options.ids

    def cold(self, length=None):
        return [self.random.randrange(10, self.ids) for _ in range(length or self.length)]


def share(values, part):
    """The value below which this part of all lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def ms(seconds):
    return f"{seconds * 1e3:.0f}" if seconds >= 0.01 else f"{seconds * 1e3:.1f}"


def row(load, answers, warm, elapsed):
    gaps = [gap for answer in answers for gap in answer.gaps]
    first = [answer.first for answer in answers]
    rate = sum(answer.tokens for answer in answers) / elapsed
    warmed = ms(statistics.median(answer.first for answer in warm)) if warm else "–"
    cells = [load, len(answers), f"{rate:.1f}", ms(statistics.median(first)), ms(share(first, 0.99)), warmed, ms(share(gaps, 0.5)), ms(share(gaps, 0.99))]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def header(load):
    print(f"| {load} | answers | tokens/s | first token, cold, p50 | p99 | warm, p50 | gap p50 | p99 |")
    print("|---|---|---|---|---|---|---|---|", flush=True)


async def closed(client, options, clients):
    """So many clients, one request after the other."""
    prompts, answers, asked = Prompts(options, 1000 + clients), [], []

    async def one():
        for _ in range(max(1, options.requests // clients)):
            prompt = prompts.cold()
            asked.append(prompt)
            answers.append(await client.ask(prompt, options.answer))

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    elapsed = time.perf_counter() - start
    warm = [await client.ask(prompt, 2) for prompt in asked[-options.warm :]]
    row(clients, answers, warm, elapsed)


async def opened(client, options, rate):
    """Requests as they come."""
    prompts, times = Prompts(options, 2000 + int(rate * 1000)), random.Random(7)
    start, tasks = time.perf_counter(), []
    for _ in range(options.requests):
        tasks.append(asyncio.create_task(client.ask(prompts.cold(), options.answer)))
        await asyncio.sleep(times.expovariate(rate))
    answers = await asyncio.gather(*tasks)
    row(f"{rate:g}/s", answers, [], time.perf_counter() - start)


async def intrude(client, options):
    """A running answer, alone and then beside a long prompt."""
    prompts = Prompts(options, 3000)
    alone = await client.ask(prompts.cold(), options.answer)
    running = asyncio.create_task(client.ask(prompts.cold(), options.talk))
    wait = max(1.0, 4 * alone.first)
    await asyncio.sleep(wait)
    start = time.perf_counter()
    reader = await client.ask(prompts.cold(options.intrude), 1)
    read = time.perf_counter() - start
    talker = await running
    print("| a running answer | gaps | p50, ms | p99, ms | p99 / p50 | p99 / p50 alone |\n|---|---|---|---|---|---|")
    beside, at = [], talker.first
    for gap in talker.gaps:
        at += gap
        if wait < at < wait + read:
            beside.append(gap)
    usual = share(alone.gaps, 0.5)
    for name, gaps in [("alone", alone.gaps), (f"while {options.intrude} tokens are read", beside)]:
        middle, high = share(gaps, 0.5), share(gaps, 0.99)
        print(f"| {name} | {len(gaps)} | {ms(middle)} | {ms(high)} | {high / middle:.2f} | {high / usual:.2f} |")
    print(f"\nThe long prompt had its first token after {reader.first:.1f} s.")


def numbers(kind):
    return lambda text: [kind(word) for word in text.split(",")]


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="such as http://127.0.0.1:8080")
    parser.add_argument("--api-key")
    parser.add_argument("--clients", type=numbers(int), default=[1, 2, 4, 8, 16])
    parser.add_argument("--rate", type=numbers(float), help="requests a second, instead of clients")
    parser.add_argument("--intrude", type=int, help="tokens of the prompt that arrives")
    parser.add_argument("--requests", type=int, default=32, help="for every load")
    parser.add_argument("--warm", type=int, default=4, help="prompts that are sent a second time")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--talk", type=int, default=1000, help="tokens of the answer that runs while a prompt arrives")
    parser.add_argument("--only", type=int, help="answers of the 64 ids from this one on: random weights say ids without a text, whose gaps nobody sees")
    parser.add_argument("--ids", type=int, default=2500, help="token ids are below")
    return parser.parse_args()


async def main():
    options = read_options()
    client = Client(options)
    if options.intrude:
        return await intrude(client, options)
    header("requests" if options.rate else "clients")
    for load in options.rate or options.clients:
        await (opened if options.rate else closed)(client, options, load)


if __name__ == "__main__":
    asyncio.run(main())
