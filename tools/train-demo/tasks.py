"""Conversations with a right answer: recall over a story, key-value lists, passkeys, arithmetic, small talk.

Every maker takes (rng, room, held_out): `room` is how many characters the prompt may take, `held_out` asks for names,
codes and combinations that training never sees. Makers return a `Conversation`.
"""

import lexicon as lex
from chat import VALUE_WEIGHT, Conversation, assistant, one_in, system, user
from lexicon import pick
from stories import Cast, fact, filler, paragraphs, secret, some, story

SHORT = ("Answer with one word or a few.", "Answer as shortly as you can.", "Give only the answer.")
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a small model that runs everywhere.",
    "Answer in one sentence.",
    "You help a reader to remember.",
    "Be kind and brief.",
)
THINK_SHARE = 0.35
ONE_QUESTION_SHARE = 0.4  # of the stories: a first answer that is also the last one, the only place to think at once


def preface(rng):
    """(messages before the first user message, whether short answers are wanted)"""
    roll = rng.random()
    if roll < 0.55:
        return [], False
    if roll < 0.8:
        return [system(pick(rng, SYSTEMS))], False
    return [system(pick(rng, SHORT))], True


def code(rng, digits, held_out):
    """A number as text, on the right side of the split; numbers of fewer than four digits are on both sides."""
    while True:
        text = str(rng.randrange(10 ** (digits - 1), 10**digits))
        if digits < 4 or lex.held_out_code(text) == held_out:
            return text


def text_weight(text):
    """Loss weight of a text in a prompt: supervised in every third conversation."""
    return 0.6 if one_in(3, text) else 0.0


def fill(rng, room):
    """Filler sentences of about `room` characters."""
    out, size = [], 0
    while size < room:
        out.append(filler(rng))
        size += len(out[-1]) + 1
    return out


def story_recall(rng, room, held_out=False):
    """A story with facts in it and questions about them, the farthest possible `room` characters back."""
    cast = Cast(rng, held_out)
    count = min(2 + room // 350, 9) if not held_out else min(2 + room // 350, 6)
    facts = []
    while len(facts) < count:
        f = fact(rng, cast)
        if f.key not in [g.key for g in facts]:
            facts.append(f)
    if room < 1500:
        sentences = story(rng, cast, facts, max(len(facts) + 6, room // 48))
    else:
        sentences = fill(rng, room - 60 * count)
        places = sorted(rng.randrange(len(sentences)) for _ in facts)
        if rng.random() < 0.4:
            places[0] = 0
        for at, f in reversed(list(zip(places, facts))):
            sentences.insert(at, f.sentence)
    text = paragraphs(rng, sentences)
    head, short = preface(rng)
    intro = some(rng, "Read this story.", "Here is a story.", "Remember what you read.", "Read the text and answer.")
    rng.shuffle(facts)
    if rng.random() < 0.4:  # the first fact of the text is the farthest away: ask for it often
        facts.sort(key=lambda f: text.find(f.sentence))
    think_share = THINK_SHARE
    if not held_out and rng.random() < ONE_QUESTION_SHARE:
        facts, think_share = facts[:1], 0.7
    messages = [*head, user(f"{intro}\n\n{text}\n\n{pick(rng, facts[0].questions)}", _weight=text_weight(text))]
    for i, f in enumerate(facts):
        if i:
            messages.append(user(pick(rng, f.questions)))
        messages.append(recall_answer(rng, f, short, think_share if i + 1 == len(facts) else 0.0))
    return Conversation("story_recall", messages, expect=[facts[-1].value])


def recall_answer(rng, f, short, think_share):
    reasoning = ""
    if think_share and rng.random() < think_share:
        reasoning = some(
            rng,
            f"The text says: {f.sentence}",
            f"I remember this: {f.sentence}",
            f"The text says: {f.sentence} So the answer is {f.value}.",
        )
    text = f.value + "." if short else f.answer
    return assistant(text, reasoning, _values=[f.value], _source=f.sentence)


def unknown(rng, room, held_out=False):
    """A question about somebody of whom the story says nothing."""
    conversation = story_recall(rng, min(room, 1200), held_out)
    stranger, _ = Cast(rng, held_out).person()
    body = next(m for m in conversation.messages if m["role"] == "user")
    if stranger.split()[0] in body["content"]:
        return conversation
    question = some(
        rng,
        f"Where did {stranger} live?",
        f"What was {stranger}'s job?",
        f"What did {stranger} like best?",
        f"How many books did {stranger} have?",
    )
    text = f"The text does not say anything about {stranger}."
    messages = [
        *conversation.messages[:-1],
        clean_thinking(conversation.messages[-1]),
        user(question),
        assistant(
            text, f"I find no {stranger} in the text." if rng.random() < THINK_SHARE else "", _values=["does not say"]
        ),
    ]
    return Conversation("unknown", messages, expect=["does not say"])


def clean_thinking(message):
    return {k: v for k, v in message.items() if k != "reasoning_content"}


def key_values(rng, room, held_out=False):
    """A list of keys with values, and many questions: the densest lesson in recall."""
    style = rng.randrange(4)
    count = max(3, min(room // 32, 120))
    pairs = {}
    for _ in range(count):
        if style == 0:
            key, value = secret(rng), code(rng, rng.choice((3, 4, 5)), held_out)
        elif style == 1:
            key, value = Cast(rng, held_out).person()[0], rng.choice(lex.COLOURS) + " " + rng.choice(lex.OBJECTS)
        elif style == 2:
            key, value = f"{rng.choice(lex.COLOURS)} {rng.choice(lex.OBJECTS)}", rng.choice(lex.CONTAINERS)
        else:
            key, value = code(rng, 4, held_out), secret(rng)
        pairs[key] = value
    lines = "".join(f"{k}: {v}\n" for k, v in pairs.items())
    keys = list(pairs)
    asked = rng.sample(keys, min(len(keys), rng.randrange(4, 12)))
    if rng.random() < 0.3:
        asked[-1] = keys[0]
    head = [system(pick(rng, SYSTEMS))] if rng.random() < 0.15 else []
    ask = pick(rng, ("What is the value of {}?", "Look up {}.", "{}?", "What belongs to {}?"))
    intro = some(rng, "Here is a list.", "Remember this list.", "Keys and values:")
    messages = [*head, user(f"{intro}\n\n{lines}\n{ask.format(asked[0])}", _weight=0.0)]
    for i, key in enumerate(asked):
        if i:
            messages.append(user(ask.format(key)))
        last = i + 1 == len(asked)
        messages.append(
            assistant(
                pairs[key],
                f"The list says {key}: {pairs[key]}" if last and rng.random() < 0.25 else "",
                _weight=VALUE_WEIGHT,
                _values=[pairs[key]],
                _source=f"{key}: {pairs[key]}\n",
            )
        )
    return Conversation("key_values", messages, expect=[pairs[asked[-1]]])


def passkey(rng, room, held_out=False):
    """One to three keys in a long text, asked for at its end."""
    sentences = fill(rng, max(room - 150, 80))
    labels = rng.sample(
        ("pass key", "door code", "number of the safe", "ticket number", "secret number"), rng.randrange(1, 4)
    )
    keys = {}
    for label in labels:
        keys[label] = code(rng, rng.choice((4, 5, 5, 6)), held_out)
        at = 0 if rng.random() < 0.3 else rng.randrange(len(sentences) + 1)
        sentences.insert(
            at,
            some(
                rng,
                f"The {label} is {keys[label]}. Remember it.",
                f"Remember that the {label} is {keys[label]}.",
                f"The {label} is {keys[label]}.",
            ),
        )
    head, short = preface(rng)
    rng.shuffle(labels)
    intro = some(
        rng, "There is an important number in this text.", "Read this text.", "Find the number and remember it."
    )
    ask = pick(rng, ("What is the {}?", "Tell me the {}.", "Do you remember the {}?"))
    text = paragraphs(rng, sentences)
    messages = [
        *head,
        user(f"{intro}\n\n{text}\n\n{ask.format(labels[0])}", _weight=text_weight(text), _values=list(keys.values())),
    ]
    for i, label in enumerate(labels):
        if i:
            messages.append(user(ask.format(label)))
        reasoning = (
            f"The text says that the {label} is {keys[label]}."
            if i + 1 == len(labels) and rng.random() < THINK_SHARE
            else ""
        )
        text = keys[label] if short else f"The {label} is {keys[label]}."
        messages.append(assistant(text, reasoning, _values=[keys[label]], _source=keys[label]))
    return Conversation("passkey", messages, expect=[keys[labels[-1]]])


def copying(rng, room, held_out=False):
    """Say it again: words, numbers, a sentence; forwards, or one item of a list by its place."""
    items = [
        rng.choice(
            (
                lambda: secret(rng),
                lambda: code(rng, rng.randrange(2, 6), held_out),
                lambda: rng.choice(lex.OBJECTS),
                lambda: Cast(rng, held_out).person()[0],
            )
        )()
        for _ in range(rng.randrange(2, 8))
    ]
    if rng.random() < 0.35:
        items = [filler(rng)]
    joined = items[0] if len(items) == 1 else ", ".join(items)
    ask = some(
        rng,
        f"Repeat: {joined}",
        f"Say this again: {joined}",
        f"Repeat after me. {joined}",
        f"Write this once more: {joined}",
    )
    think = rng.random() < THINK_SHARE
    messages = [user(ask, _weight=0.0), assistant(joined, "I only have to repeat this." if think else "", _weight=2.0)]
    expect = [joined]
    if len(items) > 2:
        place = rng.randrange(len(items))
        which = (
            "last"
            if place + 1 == len(items)
            else ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")[place]
        )
        expect = [items[place]]
        messages += [
            user(f"What came {which}?"),
            assistant(items[place] + ".", f"The user gave me: {joined}" if think else "", _values=[items[place]]),
        ]
    return Conversation("copying", messages, expect=expect)


def repeats(rng, room):
    """Plain text: a list of things that have nothing to do with each other, and the same again; or keys with values, and
    the keys once more in another order. Every token of the second part has been seen and can be known from nothing else."""
    item = rng.choice(
        (
            lambda: secret(rng),
            lambda: rng.choice(lex.OBJECTS),
            lambda: code(rng, rng.choice((2, 3, 4, 5)), False),
            lambda: Cast(rng).person()[0],
            lambda: f"{rng.choice(lex.COLOURS)} {rng.choice(lex.ANIMALS)}",
        )
    )
    room = int(min(room, rng.choice((300, 600, 1200, 2400))))
    if rng.random() < 0.4:
        end = rng.choice((" ", "\n", ", "))
        first = end.join(item() for _ in range(max(4, room // 18)))
        return [(first + end, 0.0), (first, 1.0), ("\n", 0.5)]
    pairs = {secret(rng) if rng.random() < 0.5 else rng.choice(lex.OBJECTS): item() for _ in range(max(3, room // 32))}
    mark = rng.choice((":", " =", " is", " ->"))
    pieces = [("".join(f"{key}{mark} {value}\n" for key, value in pairs.items()), 0.0)]
    for key in rng.sample(list(pairs), len(pairs)):
        pieces += [(f"{key}{mark}", 0.05), (f" {pairs[key]}", 2.0), ("\n", 0.3)]
    return pieces


def sum_steps(a, b):
    """Written addition or subtraction of two numbers below 100 as a line of thought."""
    if a < 10 and b < 10:
        return f"{a} + {b} = {a + b}."
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    return f"{a % 10} + {b % 10} = {ones}. {a // 10 * 10} + {b // 10 * 10} = {tens}. {tens} + {ones} = {a + b}."


def problem(rng, held_out):
    """(question, expression, steps, result). A tenth of the combinations belongs to evaluation."""
    while True:
        kind, limit = rng.random(), rng.choice((10, 10, 20, 50, 100))
        a, b = rng.randrange(limit), rng.randrange(limit)
        if kind < 0.55:
            sign, result, steps = "+", a + b, sum_steps(a, b)
        elif kind < 0.85:
            a, b = max(a, b), min(a, b)
            sign, result, steps = "-", a - b, f"{b} + {a - b} = {a}."
        else:
            a, b = rng.randrange(1, 11), rng.randrange(1, 11)
            sign, result, steps = "*", a * b, f"{a} times {b} is {a * b}."
        if (lex.held_out_pair(str(a), sign, str(b)) and max(a, b) > 9) == held_out or (
            held_out and max(a, b) <= 9 and rng.random() < 0.05
        ):
            return f"{a} {sign} {b}", steps, str(result), (a, sign, b)


def arithmetic(rng, room, held_out=False):
    """One to six small problems, as expressions or as little stories."""
    head, short = preface(rng)
    messages, results = [*head], []
    count = rng.randrange(1, 7)
    for i in range(count):
        expression, steps, result, (a, sign, b) = problem(rng, held_out)
        if sign != "*" and rng.random() < 0.25:
            name, _ = Cast(rng, held_out).person()
            things = rng.choice(("apples", "coins", "books", "shells", "stamps", "marbles"))
            move = f"gets {b} more" if sign == "+" else f"gives away {b}"
            question = f"{name} has {a} {things} and {move}. How many {things} does {name} have now?"
            answer = f"{name} has {result} {things} now."
        else:
            question = pick(rng, ("What is {}?", "{} = ?", "Calculate {}.", "How much is {}?", "{}")).format(expression)
            answer = some(rng, f"{expression} = {result}", f"{expression} = {result}.", f"The answer is {result}.")
        thinks = i + 1 == count and rng.random() < 0.6
        reasoning = some(rng, f"{expression}: {steps}", steps) if thinks else ""
        messages += [
            user(question),
            assistant(result if short else answer, reasoning, _weight=1.5, _values=[" " + result, result]),
        ]
        results.append(result)
    return Conversation("arithmetic", messages, expect=[results[-1]])


def sums(rng):
    """Plain text: a list of worked problems."""
    lines = []
    for _ in range(rng.randrange(6, 16)):
        expression, _, result, _ = problem(rng, False)
        lines += [(f"{expression} =", 0.1), (f" {result}", 2.0), ("\n", 0.5)]
    return lines
