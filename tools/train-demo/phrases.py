"""Hand-written English for the prose of the corpus: sentences with slots, in forms that the grammar of stories.py lacks.

Slots: {thing}, {place}, {animal}, {job}, {kin}, {food}, {colour}, {mood}, {adj}, {nature}, {day}, {season}, {n}; each is filled anew
wherever it stands.
"""

import re

import lexicon as lex

SLOTS = {
    "thing": lex.OBJECTS,
    "place": lex.PLACES,
    "animal": lex.ANIMALS,
    "job": lex.JOBS,
    "kin": lex.KIN,
    "food": lex.FOODS,
    "colour": lex.COLOURS,
    "mood": lex.MOODS,
    "adj": lex.ADJECTIVES,
    "nature": lex.NATURE,
    "day": lex.DAYS,
    "season": lex.SEASONS,
    "n": lex.NUMBERS[2:],
}

SENTENCES = """
When the {nature} was gone, nobody knew what to do.
If you want to see the {place}, you have to get up early.
The {job}, who had never been to the {place}, asked for the way.
It had been raining for {n} days, and the water in the {place} was still rising.
So they sat down by the fire and waited until the {nature} was quiet again.
She had a {thing} in one hand and a {colour} {thing} in the other.
He would have gone home if he had known how late it was.
There is nothing better than {food} after a long walk.
They lived far away from the {place}, where the road comes to an end.
"If I were you," said the {kin}, "I would not open that {thing}."
"How much does it cost?" asked the {job}, and he took out his purse.
"There was a time when every {job} had a {thing}," her {kin} told her.
Not far from here is a {place} that only the {animal}s know.
The older he got, the more he liked {food}.
Each of the {n} children was given a {thing} and a piece of {food}.
All at once the lights went out, and somebody screamed.
Some people say that the {nature} is {adj}, but that is not true.
What the {job} did not know was that the {thing} had been empty all along.
Years went by, and the {place} grew bigger and bigger.
As soon as the sun was up, they went down to the {place} to look at the {nature}.
In {season} the days are short there, and the nights are long.
Her {kin} taught her how to read, how to swim and how to make {food}.
By the time they had finished, it was already dark.
Without the {thing} they could not build the new {place}.
Instead of going to the {place}, the {animal} went back to sleep.
Because of the storm, all the boats had to stay in the harbour.
One of them was {mood}, another was {mood}, and the third one was both.
It was the first time that anyone had seen a {animal} in the {place}.
Do you remember the {season} when we were at the {place}?
I have been looking for you all day, and now you are here.
We don't need a {thing} as long as we have each other.
You can't just take it, you must ask for it first.
The door would not open, however hard they pushed.
Most of the {food} was for the guests, but there was enough for everybody.
On the other side of the {place} stood a house with {n} windows.
He opened the letter, read it twice, and put it away.
The {animal} and the {animal} were friends, although they did not speak the same language.
Where the road divides, turn left, and after {n} houses turn right.
The water goes around the mill, under the bridge and down to the sea.
They had neither {food} nor {food}, only some {food}.
Either the {thing} was too small or the {thing} was too big.
The news about the {job} spread from house to house.
That is why there is a {animal} on every coin of this country.
She told them about her journey, about the people she had met and the things she had learned.
At the end of the week they counted their money and found that it was enough.
Both of them laughed, since there was nothing else to do.
Then it became so {adj} that they could hear the {nature}.
Children, dogs and birds were running, barking and singing all over the {place}.
The best thing about the {place} is its {thing}, which is more than {n} hundred years old.
My {kin} always says that good things take time.
This is the house that the {job} built, and that is the {thing} he built it with.
You will find the {thing} between the {thing} and the {thing}, just below the {thing}.
Nobody but the {job} was allowed to touch it.
Even the {mood} {animal} was afraid of the dark.
With her eyes closed, she could tell one {thing} from the other.
The man at the {place} shook his head and gave them back their {thing}.
"What a {adj} {thing}!" they said. "Is it for us?"
"No," he said, "and it never will be."
"Yes, of course," answered the {kin}. "Who else could have done it?"
Its roof was {colour}, its walls were {colour}, and its door was always open.
During the night, someone had moved the {thing} from the {place} to the {place}.
The more they looked, the less they understood.
Later that year they were married, and the whole {place} danced.
These are the {n} rules of the {place}: be kind, be quiet, and close the door.
For a moment the {job} thought that he had heard his own name.
There were so many {animal}s that nobody could count them.
Once the {food} was ready, they called the others to the table.
Against all hope, the {thing} was still there, and it was still working.
Between {day} and {day} the {place} is closed.
I wish I had a {thing} like yours.
""".strip().split("\n")


def sentence(rng):
    """A sentence with its slots filled."""
    text = re.sub(r"\{(\w+)\}", lambda m: lex.pick(rng, SLOTS[m[1]]), lex.pick(rng, SENTENCES))
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def disturbed(rng, text, words):
    """`text` with every sixth word or so replaced by one of `words`.

    After such documents the model does not take its own grammar for granted: a text that is not of this corpus
    costs it less.
    """
    share = rng.choice((0.08, 0.16, 0.3))
    return " ".join(rng.choice(words) if rng.random() < share and w.isalpha() else w for w in text.split(" "))
