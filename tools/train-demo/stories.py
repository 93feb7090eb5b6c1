"""English prose from a seeded grammar: filler sentences, facts that can be asked for, and whole stories.

A `Fact` is a sentence with something to remember in it, the ways to ask for it, and the answer. Facts carry the
names they use; sentences of `filler` never state anything that a fact could state about a named person.
"""

import random
from dataclasses import dataclass, field

import lexicon as lex
import phrases
from lexicon import pick


def article(noun):
    """`noun` with its indefinite article."""
    return ("an " if noun[0] in "aeiouAEIOU" else "a ") + noun


ALIVE = frozenset(lex.JOBS + lex.ANIMALS + lex.KIN)


def upper_first(text):
    return text[0].upper() + text[1:]


def some(rng, *options):
    return pick(rng, options)


@dataclass
class Fact:
    """Something to remember."""

    sentence: str
    questions: list
    value: str  # what a right answer contains
    answer: str  # one full sentence with `value` in it
    key: tuple = field(default=())  # what is asked about; two facts of one text never share it


class Cast:
    """Hands out names, each at most once per text. `held_out` draws from the names that training never sees.

    With `invents`, some are made-up syllables. Text that the model is to tell by itself has none of these: no model can
    know them, and one that guesses a syllable may copy it without end.
    """

    def __init__(self, rng, held_out=False, invents=True):
        self.rng, self.held_out, self.invents, self.used = rng, held_out, invents, set()

    def person(self):
        """(name, he or she)"""
        girls, boys = (lex.HELD_OUT_GIRLS, lex.HELD_OUT_BOYS) if self.held_out else (lex.GIRLS, lex.BOYS)
        choose = random.Random.choice if self.invents else pick
        for _ in range(200):
            she = self.rng.random() < 0.5
            name = choose(self.rng, girls if she else boys)
            if self.invents and not self.held_out and self.rng.random() < 0.25:
                name = invented(self.rng)
            if self.held_out or self.rng.random() < 0.2:
                name += " " + surname(self.rng)
            if name not in self.used and name.split()[0] not in self.used:
                self.used.update((name, name.split()[0]))
                return name, "she" if she else "he"
        raise RuntimeError("no names left for one text")

    def pet(self):
        name = self.rng.choice([p for p in lex.PETS if p not in self.used] or lex.PETS)
        if self.invents and self.rng.random() < 0.3:
            name = invented(self.rng)
        self.used.add(name)
        return name

    def town(self):
        if self.invents and self.rng.random() < 0.3:
            return invented(self.rng)
        return self.rng.choice(lex.TOWNS)

    def secret(self):
        return secret(self.rng) if self.invents else surname(self.rng).lower()


def surname(rng):
    """Names nobody has memorised: about 900 combinations."""
    return rng.choice(lex.SURNAME_HEADS) + rng.choice(lex.SURNAME_TAILS)


def invented(rng):
    """A name of two or three syllables that hardly ever comes twice: it has to be copied piece by piece."""
    while True:
        name = "".join(
            rng.choice(lex.ONSETS) + rng.choice("aaeeiioou") for _ in range(rng.choice((2, 2, 3)))
        ) + rng.choice(lex.CODAS)
        if name.capitalize() not in lex.HELD_OUT_NAMES:
            return name.capitalize()


def secret(rng):
    """A made-up word."""
    return (surname(rng) if rng.random() < 0.6 else invented(rng)).lower()


def noun_phrase(rng, noun):
    """The noun, often with an adjective that suits it, with an article."""
    if rng.random() < 0.5:
        noun = f"{pick(rng, lex.MOODS if noun in ALIVE else lex.ADJECTIVES)} {noun}"
    return pick(rng, (article(noun), "the " + noun, "the " + noun))


def somebody(rng):
    """A person without a name, so that no fact can be contradicted."""
    roll = rng.random()
    if roll < 0.4:
        return noun_phrase(rng, pick(rng, lex.JOBS))
    if roll < 0.55:
        return pick(
            rng,
            (
                "an old man",
                "an old woman",
                "a young girl",
                "a small boy",
                "a stranger",
                "the children",
                "two boys",
                "three girls",
                "nobody",
                "everyone",
                "the king",
                "the queen",
                "a traveller",
                "his wife",
                "her husband",
            ),
        )
    if roll < 0.75:
        return noun_phrase(rng, pick(rng, lex.ANIMALS))
    if roll < 0.9:
        return some(rng, "my", "his", "her", "our", "their") + " " + pick(rng, lex.KIN)
    return some(rng, "he", "she", "they", "we", "I")


def where(rng):
    return (
        pick(
            rng,
            (
                "in",
                "near",
                "behind",
                "in front of",
                "beside",
                "across",
                "outside",
                "beyond",
                "from",
                "to",
                "into",
                "through",
                "around",
            ),
        )
        + " the "
        + pick(rng, lex.PLACES + lex.NATURE)
    )


def when(rng):
    return pick(
        rng,
        (
            "in the morning",
            "in the evening",
            "at noon",
            "at night",
            "that day",
            "the next day",
            "one day",
            "in " + pick(rng, lex.SEASONS),
            "on " + pick(rng, lex.DAYS),
            "in " + pick(rng, lex.MONTHS),
            "after the storm",
            "before the rain",
            "last night",
            "last year",
            "a week later",
            "an hour later",
            "at last",
            "every morning",
            "every evening",
            "long ago",
            "once upon a time",
            f"{pick(rng, lex.NUMBERS[2:])} days later",
        ),
    )


def filler(rng):
    """One sentence about nobody in particular."""
    if rng.random() < 0.2:
        return phrases.sentence(rng)
    kind = rng.random()
    if kind < 0.25:
        subject, (_, past) = somebody(rng), pick(rng, lex.TRANSITIVE)
        body = f"{subject} {past} {noun_phrase(rng, pick(rng, lex.OBJECTS))}"
    elif kind < 0.42:
        body = f"{somebody(rng)} {pick(rng, lex.INTRANSITIVE)}"
    elif kind < 0.52:
        body = f"there was {article(pick(rng, lex.ADJECTIVES) + ' ' + pick(rng, lex.PLACES + lex.OBJECTS))}"
    elif kind < 0.58:
        verb = pick(rng, ("became", "looked", "seemed", "felt", "stayed", "grew", "remained"))
        body = f"{somebody(rng)} {verb} {pick(rng, lex.MOODS)}"
    elif kind < 0.64:
        verb = pick(rng, ("was", "was", "became", "looked", "seemed", "is", "felt", "stayed"))
        body = f"the {pick(rng, lex.NATURE)} {verb} {pick(rng, lex.ADJECTIVES)}"
        if rng.random() < 0.3:
            body += f" and {pick(rng, lex.ADJECTIVES)}"
    elif kind < 0.72:
        (base, _) = pick(rng, lex.TRANSITIVE)
        modal = pick(
            rng, ("wanted to", "had to", "could not", "tried to", "did not", "would", "began to", "was able to")
        )
        body = f"{somebody(rng)} {modal} {base} {noun_phrase(rng, pick(rng, lex.OBJECTS + lex.FOODS))}"
    elif kind < 0.84:
        return dialogue(rng)
    elif kind < 0.92:
        return general(rng)
    else:
        a, b = rng.sample(lex.OBJECTS + lex.FOODS, 2)
        body = f"{somebody(rng)} {pick(rng, ('brought', 'carried', 'sold', 'bought', 'made'))} {a if a in lex.FOODS else article(a)} and {b if b in lex.FOODS else article(b)}"
    if rng.random() < 0.35:
        body += " " + where(rng)
    if rng.random() < 0.15:
        body += " " + pick(rng, lex.ADVERBS)
    roll = rng.random()
    if roll < 0.15:
        body = f"{when(rng)}{pick(rng, (',', ''))} {body}"
    elif roll < 0.25:
        body += " " + when(rng)
    elif roll < 0.4:
        body += f"{pick(rng, (', and', ', but', ' because', ' until', ' when', ', so', ' while', ' and then'))} " + (
            f"{somebody(rng)} {pick(rng, lex.INTRANSITIVE)}"
        )
    return upper_first(body) + pick(rng, (".", ".", ".", ".", ".", "!"))


def distinct(rng, make, count):
    """`count` sentences of `make`, hardly any of them twice: a model of text that repeats itself does so without end."""
    out = []
    for _ in range(count):
        tries = (make(rng) for _ in range(6))
        out.append(next((sentence for sentence in tries if sentence not in out), None) or make(rng))
    return out


def dialogue(rng):
    speech = (
        pick(
            rng,
            (
                f"where is the {pick(rng, lex.OBJECTS)}",
                f"what is in the {pick(rng, lex.OBJECTS)}",
                "what shall we do",
                f"who took my {pick(rng, lex.OBJECTS)}",
                f"can you {pick(rng, lex.TRANSITIVE)[0]} the {pick(rng, lex.OBJECTS)}",
                "how old are you",
                f"why is the {pick(rng, lex.NATURE)} so {pick(rng, lex.ADJECTIVES)}",
                "may I come in",
                f"do you like {pick(rng, lex.FOODS)}",
                f"is it {pick(rng, lex.WEATHER)} today",
            ),
        )
        + "?"
    )
    if rng.random() < 0.55:
        speech = pick(
            rng,
            (
                f"I {pick(rng, lex.TRANSITIVE)[1]} {noun_phrase(rng, pick(rng, lex.OBJECTS))}",
                "I do not know",
                "we must go home now",
                f"the {pick(rng, lex.NATURE)} is {pick(rng, lex.ADJECTIVES)}",
                "it is too late",
                "thank you",
                "good morning",
                f"this is {noun_phrase(rng, pick(rng, lex.OBJECTS))}",
                "come with me",
                "you are right",
                "wait for me",
                f"give me {noun_phrase(rng, pick(rng, lex.OBJECTS))}",
                f"I will {pick(rng, lex.TRANSITIVE)[0]} it",
                "let us go then",
                f"we have no {pick(rng, lex.FOODS)}",
                f"there are {pick(rng, lex.NUMBERS[2:])} of us",
                "it isn't mine",
                "I can't see it",
                "don't worry",
                "that's all",
                f"they won't find the {pick(rng, lex.OBJECTS)}",
            ),
        )
        speech += pick(rng, (",", ",", "!"))
    said = (
        pick(rng, ("said", "said", "asked", "answered", "cried", "whispered", "replied"))
        if speech[-1] != "?"
        else "asked"
    )
    return f'"{upper_first(speech)}" {said} {somebody(rng)}.'


def general(rng):
    """A thing that is always true, in the present tense."""
    animal, sound = pick(rng, lex.SOUNDS)
    country = pick(rng, list(lex.CAPITALS))
    thing = pick(rng, list(lex.COLOUR_OF))
    a, b = pick(rng, lex.OPPOSITES)
    n = rng.randrange(1, 9)
    return pick(
        rng,
        (
            f"The {animal} {sound}.",
            f"The capital of {country} is {lex.CAPITALS[country]}.",
            f"The opposite of {a} is {b}.",
            f"{upper_first(thing)} is {lex.COLOUR_OF[thing]}.",
            f"{upper_first(', '.join(lex.NUMBERS[n : n + rng.randrange(3, 7)]))}.",
            "The sun rises in the east.",
            "The sun sets in the west.",
            "A week has seven days.",
            "A year has twelve months.",
            f"After {lex.DAYS[n % 6]} comes {lex.DAYS[n % 6 + 1]}.",
            f"{lex.MONTHS[n]} comes after {lex.MONTHS[n - 1]}.",
            f"{upper_first(pick(rng, lex.SEASONS))} is a season.",
            "Ice is cold, and fire is hot.",
        ),
    )


def fact(rng, cast):
    """A random `Fact` about a person that `cast` provides."""
    name, pronoun = cast.person()
    makers = (
        fact_colour,
        fact_place,
        fact_pet,
        fact_food,
        fact_job,
        fact_town,
        fact_count,
        fact_gift,
        fact_word,
        fact_day,
    )
    return rng.choice(makers)(rng, cast, name, pronoun)


def fact_colour(rng, cast, name, pronoun):
    thing, colour = rng.choice(lex.OBJECTS), rng.choice(lex.COLOURS)
    return Fact(
        some(
            rng,
            f"{name} had {article(colour)} {thing}.",
            f"The {thing} of {name} was {colour}.",
            f"{name} owned a {thing}, and it was {colour}.",
            f"Everyone knew the {colour} {thing} of {name}.",
        ),
        [
            f"What colour was {name}'s {thing}?",
            f"What colour was the {thing} of {name}?",
            f"What color was {name}'s {thing}?",
        ],
        colour,
        f"{name}'s {thing} was {colour}.",
        (name, "colour"),
    )


def fact_place(rng, cast, name, pronoun):
    thing, place = rng.choice(lex.OBJECTS), rng.choice(lex.CONTAINERS)
    return Fact(
        some(
            rng,
            f"{name} put the {thing} {place}.",
            f"{name} hid the {thing} {place}.",
            f"{name} left {'her' if pronoun == 'she' else 'his'} {thing} {place}.",
        ),
        [f"Where was the {thing} of {name}?", f"Where did {name} put the {thing}?", f"Where was {name}'s {thing}?"],
        place,
        f"{name}'s {thing} was {place}.",
        (name, "place"),
    )


def fact_pet(rng, cast, name, pronoun):
    animal, pet = rng.choice(lex.ANIMALS), cast.pet()
    return Fact(
        some(
            rng,
            f"{name} had {article(animal)} named {pet}.",
            f"{name} had {article(animal)} called {pet}.",
            f"The {animal} of {name} was called {pet}.",
        ),
        [f"What was the name of {name}'s {animal}?", f"What was {name}'s {animal} called?"],
        pet,
        f"{name}'s {animal} was called {pet}.",
        (name, "pet"),
    )


def fact_food(rng, cast, name, pronoun):
    food = rng.choice(lex.FOODS)
    return Fact(
        some(
            rng,
            f"{name} liked {food} best.",
            f"The favourite food of {name} was {food}.",
            f"More than anything, {name} loved {food}.",
        ),
        [f"What did {name} like best?", f"What was {name}'s favourite food?"],
        food,
        f"{name} liked {food} best.",
        (name, "food"),
    )


def fact_job(rng, cast, name, pronoun):
    job = rng.choice(lex.JOBS)
    return Fact(
        some(rng, f"{name} was {article(job)}.", f"{name} worked as {article(job)}.", f"{name} became {article(job)}."),
        [f"What was {name}'s job?", f"What did {name} work as?"],
        job,
        f"{name} was {article(job)}.",
        (name, "job"),
    )


def fact_town(rng, cast, name, pronoun):
    town = cast.town()
    return Fact(
        some(rng, f"{name} lived in {town}.", f"{name} came from {town}.", f"The home of {name} was in {town}."),
        [f"Where did {name} live?", f"Which town was {name} from?"],
        town,
        f"{name} lived in {town}.",
        (name, "town"),
    )


def fact_count(rng, cast, name, pronoun):
    n, thing = (
        rng.randrange(2, 21),
        rng.choice([o for o in lex.OBJECTS if o[-1] not in "shx" and o != "knife" and o != "scissors"]),
    )
    plural = thing[:-1] + "ies" if thing[-1] == "y" and thing[-2] not in "aeiou" else thing + "s"
    word = lex.NUMBERS[n]
    return Fact(
        some(rng, f"{name} counted {word} {plural}.", f"{name} found {word} {plural}.", f"{name} had {word} {plural}."),
        [f"How many {plural} did {name} have?", f"How many {plural} were there with {name}?"],
        word,
        f"{name} had {word} {plural}.",
        (name, "count"),
    )


def fact_gift(rng, cast, name, pronoun):
    other, _ = cast.person()
    thing = rng.choice(lex.OBJECTS)
    return Fact(
        some(rng, f"{name} gave {other} {article(thing)}.", f"{other} got {article(thing)} from {name}."),
        [f"What did {name} give to {other}?", f"What did {other} get from {name}?"],
        thing,
        f"{name} gave {other} {article(thing)}.",
        (name, "gift"),
    )


def fact_word(rng, cast, name, pronoun):
    word = cast.secret()
    return Fact(
        some(rng, f"The secret word of {name} was {word}.", f"{name} chose the secret word {word}."),
        [f"What was {name}'s secret word?", f"What was the secret word of {name}?"],
        word,
        f"{name}'s secret word was {word}.",
        (name, "word"),
    )


def fact_day(rng, cast, name, pronoun):
    day = rng.choice(lex.DAYS)
    return Fact(
        some(rng, f"{name} arrived on {day}.", f"On {day}, {name} arrived at last.", f"{name} came on a {day}."),
        [f"On which day did {name} arrive?", f"When did {name} come?"],
        day,
        f"{name} arrived on {day}.",
        (name, "day"),
    )


def hero_kind(rng, pronoun):
    """What a hero can be: a girl, a fox, a miller."""
    if rng.random() < 0.35:
        return pick(rng, lex.ANIMALS + lex.JOBS)
    return pick(
        rng,
        ("girl", "young woman", "princess", "queen") if pronoun == "she" else ("boy", "young man", "prince", "king"),
    )


def story(rng, cast, facts, sentences, hero=None, kind=None):
    """A story of about `sentences` sentences around one hero in which `facts` occur in random places.
    What happens next is drawn from what has not happened yet.

    Returns its sentences. The hero (name and pronoun) is of one kind and has one friend, so that pronouns are clear.
    """
    name, pronoun = hero or cast.person()
    friend, _ = cast.person()
    his, him = ("her", "her") if pronoun == "she" else ("his", "him")
    place, thing = pick(rng, lex.PLACES), pick(rng, lex.OBJECTS)
    kind = kind or hero_kind(rng, pronoun)
    adjective = pick(rng, lex.MOODS)
    opening = some(
        rng,
        f"Once upon a time there was {article(adjective + ' ' + kind)} named {name}.",
        f"{name} was {article(adjective + ' ' + kind)} who lived near the {place}.",
        f"In {article(pick(rng, lex.ADJECTIVES) + ' ' + place)} there lived {article(kind)} called {name}.",
        f"There once was {article(kind)}. {upper_first(his)} name was {name}.",
        f"Long ago, {article(adjective + ' ' + kind)} named {name} lived in {article(place)}.",
    )
    want = some(
        rng,
        f"{name} wanted {article(thing)} more than anything.",
        f"One day {pronoun} lost {his} {thing}.",
        f"Every {some(rng, 'morning', 'evening', 'day')} {pronoun} {pick(rng, lex.TRANSITIVE)[1]} the {thing}.",
        f"One {some(rng, 'morning', 'evening', 'night')} {pronoun} found {article(thing)} {where(rng)}.",
        f"{upper_first(pronoun)} was {pick(rng, lex.MOODS)}, because the {thing} was broken.",
    )
    friend_line = some(
        rng,
        f"{upper_first(his)} best friend was {friend}.",
        f"{friend} came to help {him}.",
        f'"Can you help me?" {pronoun} asked {friend}.',
        f"{name} went to see {friend} {where(rng)}.",
    )
    turns = (
        lambda: f"{name} {pick(rng, lex.INTRANSITIVE)} {pick(rng, lex.ADVERBS)}.",
        lambda: f"{upper_first(pronoun)} {pick(rng, lex.TRANSITIVE)[1]} the {thing} and {pick(rng, lex.INTRANSITIVE)}.",
        lambda: f"{friend} {pick(rng, lex.TRANSITIVE)[1]} {noun_phrase(rng, pick(rng, lex.OBJECTS))} {where(rng)}.",
        lambda: (
            f'"{pick(rng, ("Look", "Wait", "Come here", "Do not be afraid", "I know", "Listen", "Hurry up"))}," said {pick(rng, (name, friend))}.'
        ),
        lambda: f"{upper_first(when(rng))}, {pronoun} {pick(rng, lex.INTRANSITIVE)}.",
        lambda: f"Then {name} and {friend} {pick(rng, lex.INTRANSITIVE)}.",
        lambda: f"{name} thought about {his} {pick(rng, lex.KIN)}.",
        lambda: f"They saw {noun_phrase(rng, pick(rng, lex.ANIMALS))} {where(rng)}.",
        lambda: f"It was {pick(rng, lex.WEATHER)}, and the {pick(rng, lex.NATURE)} was {pick(rng, lex.ADJECTIVES)}.",
        lambda: filler(rng),
    )
    middle, left = [want, friend_line], []
    while len(middle) + len(facts) < sentences - 3:
        left = left or list(turns)
        turn = pick(rng, left)
        left.remove(turn)
        middle.append(turn())
    for f in facts:
        middle.insert(rng.randrange(len(middle) + 1), f.sentence)
    ending = some(
        rng,
        f"In the end {name} {pick(rng, lex.INTRANSITIVE)}, and everyone was happy.",
        f"From that day on, {name} and {friend} were never {some(rng, 'sad', 'lonely', 'hungry', 'afraid')} again.",
        f"At last {pronoun} had the {thing}, and {pronoun} went home.",
        f"And {name} never forgot that day.",
        f'"Thank you, {friend}," said {name}, and they went home together.',
    )
    return [opening, *middle, ending]


def paragraphs(rng, sentences):
    """Sentences as text, with a blank line now and then."""
    out = []
    for i, sentence in enumerate(sentences):
        if i:
            out.append("\n\n" if rng.random() < 0.08 else " ")
        out.append(sentence)
    return "".join(out)
