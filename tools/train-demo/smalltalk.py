"""Small talk, general knowledge, little writing tasks, and what the model says about itself."""

import lexicon as lex
from chat import Conversation, assistant, system, user
from lexicon import pick
from stories import Cast, article, hero_kind, some, story, upper_first

HELLO = (
    "Hello!",
    "Hi!",
    "Hello",
    "Hi",
    "Hey!",
    "Good morning!",
    "Good evening!",
    "Hello there.",
    "Hi there!",
    "Good day!",
)
HELLO_BACK = (
    "Hello! How can I help you?",
    "Hello! What can I do for you?",
    "Hi! What would you like to do today?",
    "Good to see you. Ask me something!",
)
THANKS = ("Thank you!", "Thanks.", "Thanks a lot!", "Thank you very much.", "That is all, thanks.")
THANKS_BACK = ("You are welcome!", "You're welcome.", "My pleasure!", "Any time!")
BYE = ("Goodbye!", "Bye!", "See you later.", "Good night.")
BYE_BACK = ("Goodbye!", "Goodbye! Come back soon.", "See you soon!", "Good night!")
WHO = (
    "Who are you?",
    "What are you?",
    "What is your name?",
    "Tell me about yourself.",
    "Are you a person?",
    "What can you do?",
    "Can you help me?",
    "What do you know?",
)
SELF = (
    "I am a small demo model with a few million parameters. I can tell stories, remember facts from a text, add small "
    "numbers and call tools."
)
BEYOND = (
    "Explain {} to me.",
    "What do you think about {}?",
    "Write an essay about {}.",
    "How does {} work?",
    "Tell me all about {}.",
    "Why is {} important?",
    "Who invented {}?",
    "Can you teach me {}?",
)
TOPICS = (
    "quantum physics",
    "the stock market",
    "a computer program in Python",
    "the history of Rome",
    "chess",
    "medicine",
    "football",
    "the law",
    "space travel",
    "artificial intelligence",
    "philosophy",
    "the economy",
    "photosynthesis",
    "electricity",
    "the internet",
    "evolution",
    "music theory",
    "gravity",
    "jazz",
    "democracy",
)
BEYOND_BACK = (
    "I am only a small demo model, and I do not know much about {}.",
    "That is too hard for me. I am a small demo model.",
    "I do not know enough about {} to answer.",
)


def knowledge(rng):
    """(question, answer, value); there is no value if many answers are right."""
    kind = rng.randrange(9)
    if kind == 0:
        country = pick(rng, list(lex.CAPITALS))
        capital = lex.CAPITALS[country]
        return (
            some(
                rng,
                f"What is the capital of {country}?",
                f"Which city is the capital of {country}?",
                f"Name the capital of {country}.",
            ),
            f"The capital of {country} is {capital}.",
            capital,
        )
    if kind == 1:
        a, b = rng.sample(rng.choice(lex.OPPOSITES), 2)
        return (
            some(rng, f"What is the opposite of {a}?", f"Give me the opposite of {a}."),
            f"The opposite of {a} is {b}.",
            b,
        )
    if kind == 2:
        animal, sound = pick(rng, lex.SOUNDS)
        return (
            some(rng, f"What sound does {article(animal)} make?", f"What does the {animal} do?"),
            f"{upper_first(article(animal))} {sound}.",
            sound,
        )
    if kind == 3:
        thing = pick(rng, list(lex.COLOUR_OF))
        return (
            some(rng, f"What colour is {thing}?", f"What color is {thing}?"),
            f"{upper_first(thing)} is {lex.COLOUR_OF[thing]}.",
            lex.COLOUR_OF[thing],
        )
    if kind == 4:
        animal = pick(rng, list(lex.HABITATS))
        return (
            f"Where does {article(animal)} live?",
            f"{upper_first(article(animal))} lives {lex.HABITATS[animal]}.",
            lex.HABITATS[animal],
        )
    if kind == 5:
        i = rng.randrange(7)
        return (
            some(rng, f"Which day comes after {lex.DAYS[i]}?", f"What day follows {lex.DAYS[i]}?"),
            f"{lex.DAYS[(i + 1) % 7]} comes after {lex.DAYS[i]}.",
            lex.DAYS[(i + 1) % 7],
        )
    if kind == 6:
        i = rng.randrange(12)
        return (
            f"Which month comes after {lex.MONTHS[i]}?",
            f"{lex.MONTHS[(i + 1) % 12]} comes after {lex.MONTHS[i]}.",
            lex.MONTHS[(i + 1) % 12],
        )
    if kind == 7:
        n, start = rng.randrange(3, 9), rng.randrange(1, 11)
        row = (
            ", ".join(str(i) for i in range(start, start + n))
            if rng.random() < 0.5
            else ", ".join(lex.NUMBERS[start : start + n])
        )
        last = row.split(", ")
        return f"Count from {last[0]} to {last[-1]}.", upper_first(row) + ".", upper_first(row)
    group, words = rng.choice(
        (
            ("animals", lex.ANIMALS),
            ("colours", lex.COLOURS),
            ("jobs", lex.JOBS),
            ("things", lex.OBJECTS),
            ("foods", lex.FOODS),
            ("months", lex.MONTHS),
            ("days", lex.DAYS),
        )
    )
    n = rng.randrange(2, 6)
    chosen = rng.sample(words, n)
    answer = upper_first(", ".join(chosen[:-1]) + " and " + chosen[-1]) + "."
    return (
        some(rng, f"Name {lex.NUMBERS[n]} {group}.", f"Give me {lex.NUMBERS[n]} {group}.", f"List {n} {group}."),
        answer,
        None,
    )


def write_story(rng, held_out):
    """A request for a story with its hero given or not, and the story."""
    named = rng.random() < 0.4
    cast = Cast(rng, held_out, invents=named)
    hero = cast.person()
    cast.invents = False
    kind = hero_kind(rng, hero[1])
    text = " ".join(story(rng, cast, [], rng.randrange(5, 10), hero, kind))
    about = article(kind)
    if named:
        about = some(rng, hero[0], f"{about} named {hero[0]}", f"{about} called {hero[0]}")
    elif rng.random() < 0.4:
        ask = some(
            rng, "Tell me a story.", "Write a short story.", "Can you tell me a story?", "Once more, a story please."
        )
        return ask, text
    ask = some(
        rng,
        f"Tell me a story about {about}.",
        f"Write a short story about {about}.",
        f"Please tell a story about {about}.",
        f"Can you tell me a story about {about}?",
    )
    return ask, text


def about_me(rng, held_out):
    """The user says something about themselves, and asks for it later."""
    name, _ = Cast(rng, held_out).person()
    f = rng.choice(
        (
            ("name", f"My name is {name}.", "What is my name?", f"Your name is {name}.", name),
            (
                "food",
                (food := rng.choice(lex.FOODS)) and f"I like {food} best.",
                "What do I like best?",
                f"You like {food} best.",
                food,
            ),
            (
                "town",
                (town := rng.choice(lex.TOWNS)) and f"I live in {town}.",
                "Where do I live?",
                f"You live in {town}.",
                town,
            ),
            (
                "colour",
                (colour := rng.choice(lex.COLOURS)) and f"My favourite colour is {colour}.",
                "What is my favourite colour?",
                f"Your favourite colour is {colour}.",
                colour,
            ),
        )
    )
    return f[1:]


def persona(rng, held_out):
    """A system prompt that gives the model a name or a role, and a question about it."""
    name, _ = Cast(rng, held_out).person()
    role = pick(rng, lex.JOBS + lex.ANIMALS)
    return (
        f"You are {name}, {article(role)}.",
        some(rng, "Who are you?", "What is your name?", "Tell me who you are."),
        f"I am {name}, {article(role)}.",
        name,
    )


def small_talk(rng, room, held_out=False):
    """One to six exchanges of mixed kinds; something said early is asked for later."""
    messages, expect = [], []
    roll = rng.random()
    if roll < 0.2:
        said, ask, answer, value = persona(rng, held_out)
        messages.append(system(said))
        pending = (ask, answer, value)
    else:
        if roll < 0.45:
            messages.append(
                system(
                    pick(
                        rng,
                        (
                            "You are a helpful assistant.",
                            "You are a small model that runs everywhere.",
                            "Be kind and brief.",
                            "You are a friendly helper.",
                        ),
                    )
                )
            )
        pending = None
    remembered = about_me(rng, held_out) if rng.random() < 0.3 else None
    if rng.random() < 0.4:
        opening = pick(rng, HELLO)
        if remembered and rng.random() < 0.6:
            messages += [
                user(f"{opening} {remembered[0]}"),
                assistant(some(rng, "Nice to meet you!", "Hello! I will remember that.", "Good to know!")),
            ]
            pending = remembered[1:]
        else:
            messages += [user(opening), assistant(pick(rng, HELLO_BACK))]
    elif remembered:
        messages += [
            user(remembered[0]),
            assistant(some(rng, "I will remember that.", "Good to know!", "Thank you for telling me.")),
        ]
        pending = remembered[1:]
    for _ in range(rng.randrange(1, 5)):
        turn = exchange(rng, room - sum(len(m["content"]) for m in messages), held_out)
        messages += turn[0]
        expect = turn[1]
    if pending and (rng.random() < 0.9 or not messages):
        ask, answer, value = pending
        messages += [user(ask), thought(rng, answer, value)]
        expect = [value]
    if rng.random() < 0.15:
        bye = rng.random() < 0.5
        messages += [user(pick(rng, BYE if bye else THANKS)), assistant(pick(rng, BYE_BACK if bye else THANKS_BACK))]
        expect = []
    for m in messages[:-1]:
        m.pop("reasoning_content", None)
    if not messages[-1].get("reasoning_content") and rng.random() < 0.3:
        messages[-1]["reasoning_content"] = some(
            rng, "This needs a friendly answer.", "I should answer politely and shortly.", "This is small talk."
        )
    return Conversation("small_talk", messages, expect=expect)


def exchange(rng, room, held_out):
    """(messages, expected values) of one question and its answer."""
    kind = rng.random()
    if kind < 0.5:
        question, answer, value = knowledge(rng)
        return [user(question), thought(rng, answer, value)], [value] if value else []
    if kind < 0.68 and room > 500:
        ask, text = write_story(rng, held_out)
        reasoning = (
            some(rng, "The user wants a story. I will write a short one.", "A story with a good end, then.")
            if rng.random() < 0.4
            else ""
        )
        return [user(ask), assistant(text, reasoning)], []
    if kind < 0.8:
        question = pick(rng, WHO)
        return [user(question), assistant(SELF, "The user asks about me." if rng.random() < 0.4 else "")], [
            "demo model"
        ]
    if kind < 0.9:
        topic = pick(rng, TOPICS)
        return [
            user(pick(rng, BEYOND).format(topic)),
            assistant(
                pick(rng, BEYOND_BACK).format(topic),
                f"I do not know {topic} well. I should say so." if rng.random() < 0.5 else "",
            ),
        ], ["I"]
    opening = pick(rng, ("How are you?", "How are you today?", "Are you well?"))
    return [
        user(opening),
        assistant(
            some(rng, "I am well, thank you. And you?", "Very well, thank you!"),
            "The user is polite. I should be too." if rng.random() < 0.4 else "",
        ),
    ], []


def thought(rng, answer, value):
    """An answer, in two of five cases with a line of thinking."""
    reasoning = ""
    if rng.random() < 0.4:
        reasoning = (
            some(
                rng,
                "This is a simple question.",
                f"I know this: {answer}",
                "I should answer in one sentence.",
                "The user wants a short answer.",
            )
            if value
            else "I will make a short list."
        )
    return assistant(answer, reasoning, _values=[value] if value else [])
