"""Conversations with tools: declarations, requests, calls in Qwen's XML form, responses and final answers.

`TOOLS` is the set of schemas that the model sees in training, with arguments of every JSON type: string, number,
integer, boolean, array, object and arrays of objects. Each entry has a maker of (request, arguments, response, answer).
"""

import json

import lexicon as lex
from chat import Conversation, assistant, call, system, user
from lexicon import pick
from stories import Cast, secret, some, surname, upper_first

STRING, NUMBER, INTEGER, BOOLEAN = ({"type": t} for t in ("string", "number", "integer", "boolean"))


def array(items):
    return {"type": "array", "items": items}


def choice(*values):
    return {"type": "string", "enum": list(values)}


def record(**properties):
    return {"type": "object", "properties": properties}


def declare(name, description, required, **properties):
    """A tool as the `tools` parameter of a chat request has it."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


TOOLS = {}


def tool(description, required, **properties):
    """Registers the decorated maker under its own name, with its declaration."""

    def register(maker):
        TOOLS[maker.__name__] = (declare(maker.__name__, description, required, **properties), maker)
        return maker

    return register


class Words:
    """Random arguments; `held_out` keeps to names that training never sees."""

    def __init__(self, rng, held_out):
        self.rng, self.cast = rng, Cast(rng, held_out)

    def name(self):
        return self.cast.person()[0]

    def place(self):
        return self.rng.choice(lex.TOWNS + list(lex.CAPITALS.values()))

    def time(self):
        return f"{self.rng.randrange(0, 24):02}:{self.rng.choice((0, 0, 15, 30, 45)):02}"

    def note(self):
        rng = self.rng
        return rng.choice(
            (
                f"buy {rng.choice(lex.FOODS)}",
                f"call {rng.choice(lex.GIRLS + lex.BOYS)}",
                f"{rng.choice(lex.OBJECTS)} is broken",
                f"bring the {rng.choice(lex.OBJECTS)}",
                f"mend the {rng.choice(lex.OBJECTS)}",
                f"meet at the {rng.choice(lex.PLACES)}",
                f"clean the {rng.choice(lex.PLACES)}",
                f"the {rng.choice(lex.NATURE)} is {rng.choice(lex.ADJECTIVES)}",
            )
        )

    def listed(self, items):
        return str(items[0]) if len(items) == 1 else ", ".join(map(str, items[:-1])) + " and " + str(items[-1])


@tool("Get the weather in a city.", ["city"], city=STRING, unit=choice("celsius", "fahrenheit"))
def get_weather(rng, w):
    city = w.place()
    arguments = {"city": city}
    ask = pick(
        rng,
        (
            "What is the weather in {}?",
            "How is the weather in {} today?",
            "Is it raining in {}?",
            "Weather in {}, please.",
        ),
    ).format(city)
    if rng.random() < 0.4:
        arguments["unit"] = rng.choice(("celsius", "fahrenheit"))
        ask += f" In {arguments['unit']}, please."
    degrees, sky = rng.randrange(-9, 36), rng.choice(lex.WEATHER)
    return ask, arguments, {"temperature": degrees, "sky": sky}, f"In {city} it is {sky}, with {degrees} degrees."


@tool("Add numbers.", ["numbers"], numbers=array(NUMBER))
def add_numbers(rng, w):
    numbers = [
        rng.randrange(1, 200) if rng.random() < 0.7 else round(rng.random() * 20, 1) for _ in range(rng.randrange(2, 6))
    ]
    total = round(sum(numbers), 1)
    return (
        pick(rng, ("Add {}.", "What is the sum of {}?", "Please add {} for me.")).format(w.listed(numbers)),
        {"numbers": numbers},
        {"sum": total},
        f"The sum is {total}.",
    )


@tool("Calculate an expression.", ["expression"], expression=STRING)
def calculate(rng, w):
    a, b, sign = rng.randrange(100, 3000), rng.randrange(2, 900), rng.choice("+-*")
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return (
        pick(rng, ("Calculate {}.", "How much is {}?", "Use the calculator: {}")).format(f"{a} {sign} {b}"),
        {"expression": f"{a} {sign} {b}"},
        {"result": result},
        f"{a} {sign} {b} = {result}",
    )


@tool("Set an alarm.", ["time"], time=STRING, repeat=BOOLEAN)
def set_alarm(rng, w):
    time, repeat = w.time(), rng.random() < 0.5
    ask = (
        f"Wake me at {time}{' every day' if repeat else ', only once'}."
        if rng.random() < 0.5
        else (f"Set an alarm for {time}{', repeating' if repeat else ', not repeating'}.")
    )
    return ask, {"time": time, "repeat": repeat}, {"ok": True}, f"The alarm is set for {time}."


@tool("Set a timer.", ["minutes"], minutes=INTEGER, label=STRING)
def set_timer(rng, w):
    minutes, arguments = rng.randrange(1, 91), {}
    arguments["minutes"] = minutes
    ask = pick(
        rng, ("Set a timer for {} minutes", "Start a timer of {} minutes", "Tell me when {} minutes are over")
    ).format(minutes)
    if rng.random() < 0.5:
        arguments["label"] = rng.choice(lex.FOODS)
        ask += f" for the {arguments['label']}"
    return ask + ".", arguments, {"ok": True}, f"The timer runs for {minutes} minutes."


@tool("Send a message to a person.", ["to", "text"], to=STRING, text=STRING, urgent=BOOLEAN)
def send_message(rng, w):
    to, text, urgent = w.name(), w.note(), rng.random() < 0.4
    arguments = {"to": to, "text": text}
    ask = pick(rng, ("Tell {to}: {text}", "Send a message to {to}: {text}", "Write to {to} that says: {text}")).format(
        to=to, text=text
    )
    if urgent:
        arguments["urgent"] = True
        ask += ". It is urgent"
    return ask + ".", arguments, {"sent": True}, f"I sent the message to {to}."


@tool(
    "Send an email to several people.", ["recipients", "subject"], recipients=array(STRING), subject=STRING, body=STRING
)
def send_email(rng, w):
    people, subject = [w.name() for _ in range(rng.randrange(1, 4))], w.note()
    arguments = {"recipients": people, "subject": subject}
    ask = pick(
        rng, ("Send an email to {} with the subject {}", "Email {} about this: {}", "Mail to {}, subject {}")
    ).format(w.listed(people), subject)
    if rng.random() < 0.3:
        arguments["body"] = upper_first(w.note()) + "."
        ask += f" and the text: {arguments['body'][:-1]}"
    return ask + ".", arguments, {"sent": len(people)}, f"The email went to {w.listed(people)}."


@tool(
    "Create an event in the calendar.",
    ["title", "day"],
    title=STRING,
    day=STRING,
    start=STRING,
    guests=array(STRING),
    all_day=BOOLEAN,
)
def create_event(rng, w):
    title, day = (
        rng.choice(("lunch", "dinner", "a meeting", "a walk", "chess", "music", "a party")),
        rng.choice(lex.DAYS),
    )
    arguments = {"title": title, "day": day}
    ask = f"Plan {title} on {day}"
    if rng.random() < 0.6:
        arguments["start"] = w.time()
        ask += f" at {arguments['start']}"
    else:
        arguments["all_day"] = True
        ask += " for the whole day"
    if rng.random() < 0.6:
        arguments["guests"] = [w.name() for _ in range(rng.randrange(1, 4))]
        ask += f" with {w.listed(arguments['guests'])}"
    return ask + ".", arguments, {"id": rng.randrange(10, 1000)}, f"I planned {title} on {day}."


@tool("Search for files.", ["query"], query=STRING, limit=INTEGER, types=array(STRING))
def search_files(rng, w):
    query = secret(rng)
    arguments = {"query": query}
    ask = pick(rng, ("Find files about {}", "Search my files for {}", "Look for {} in my files")).format(query)
    if rng.random() < 0.4:
        arguments["types"] = rng.sample(("txt", "pdf", "png", "md", "csv"), rng.randrange(1, 4))
        ask += f", only {w.listed(arguments['types'])}"
    if rng.random() < 0.4:
        arguments["limit"] = rng.randrange(1, 21)
        ask += f", at most {arguments['limit']}"
    found = rng.randrange(0, 9)
    return ask + ".", arguments, {"found": found}, f"I found {found} files about {query}."


@tool("Read a file.", ["path"], path=STRING)
def read_file(rng, w):
    path = f"{rng.choice(('docs', 'notes', 'src', 'data'))}/{secret(rng)}.{rng.choice(('txt', 'md', 'csv'))}"
    text = upper_first(w.note()) + "."
    return (
        pick(rng, ("Open {}.", "What is in {}?", "Read {} to me.")).format(path),
        {"path": path},
        {"text": text},
        f"The file says: {text}",
    )


@tool("Move files to a folder.", ["paths", "folder"], paths=array(STRING), folder=STRING, overwrite=BOOLEAN)
def move_files(rng, w):
    paths = [f"{secret(rng)}.{rng.choice(('txt', 'md', 'png'))}" for _ in range(rng.randrange(1, 4))]
    folder = rng.choice(("docs", "notes", "old", "photos", "work"))
    arguments = {"paths": paths, "folder": folder}
    ask = pick(rng, ("Move {} to {}", "Put {} into the folder {}")).format(w.listed(paths), folder)
    if rng.random() < 0.5:
        arguments["overwrite"] = rng.random() < 0.5
        ask += " and overwrite" if arguments["overwrite"] else " but do not overwrite anything"
    return ask + ".", arguments, {"moved": len(paths)}, f"I moved {w.listed(paths)} to {folder}."


@tool("Turn a light on or off.", ["room", "on"], room=STRING, on=BOOLEAN, brightness=INTEGER)
def set_light(rng, w):
    room, on = rng.choice(("kitchen", "bedroom", "hall", "garden", "cellar", "library", "office")), rng.random() < 0.5
    arguments = {"room": room, "on": on}
    ask = (
        f"Turn {'on' if on else 'off'} the light in the {room}"
        if rng.random() < 0.5
        else f"Switch the {room} light {'on' if on else 'off'}"
    )
    if on and rng.random() < 0.5:
        arguments["brightness"] = rng.randrange(5, 101)
        ask += f" at {arguments['brightness']} percent"
    return ask + ".", arguments, {"ok": True}, f"The light in the {room} is {'on' if on else 'off'}."


@tool("Set the temperature of a room.", ["room", "degrees"], room=STRING, degrees=NUMBER)
def set_heating(rng, w):
    room, degrees = rng.choice(("kitchen", "bedroom", "hall", "office", "library")), rng.randrange(30, 50) / 2
    return (
        rng.choice(
            ("Make the {} {} degrees warm.", "Set the heating in the {} to {}.", "Heat the {} to {} degrees.")
        ).format(room, degrees),
        {"room": room, "degrees": degrees},
        {"ok": True},
        f"The {room} will have {degrees} degrees.",
    )


@tool("Order food.", ["items"], items=array(record(name=STRING, count=INTEGER)), delivery=BOOLEAN)
def order_food(rng, w):
    items = [{"name": f, "count": rng.randrange(1, 10)} for f in rng.sample(lex.FOODS, rng.randrange(1, 4))]
    arguments = {"items": items}
    ask = "Order " + w.listed([str(i["count"]) + " " + i["name"] for i in items])
    if rng.random() < 0.6:
        arguments["delivery"] = rng.random() < 0.5
        ask += ", delivered to me" if arguments["delivery"] else ", and I will pick it up"
    return ask + ".", arguments, {"order": rng.randrange(100, 1000)}, "Your order is placed."


@tool("Add a person to the address book.", ["contact"], contact=record(name=STRING, phone=STRING, tags=array(STRING)))
def add_contact(rng, w):
    name, phone = w.name(), "".join(str(rng.randrange(10)) for _ in range(6))
    contact = {"name": name, "phone": phone}
    ask = pick(rng, ("Save {} with the number {}", "Add {} to my contacts, phone {}", "New contact: {}, {}")).format(
        name, phone
    )
    if rng.random() < 0.5:
        contact["tags"] = rng.sample(("work", "family", "school", "sport", "music"), rng.randrange(1, 3))
        ask += f", tags {w.listed(contact['tags'])}"
    return ask + ".", {"contact": contact}, {"ok": True}, f"I saved {name}."


@tool(
    "Book a room.",
    ["room", "guest", "nights"],
    room=STRING,
    guest=record(name=STRING, age=INTEGER),
    nights=INTEGER,
    breakfast=BOOLEAN,
)
def book_room(rng, w):
    name, age, nights, room = (
        w.name(),
        rng.randrange(18, 90),
        rng.randrange(1, 15),
        rng.choice(("single", "double", "family")),
    )
    arguments = {"room": room, "guest": {"name": name, "age": age}, "nights": nights}
    ask = f"Book a {room} room for {name}, who is {age}, for {nights} nights"
    if rng.random() < 0.6:
        arguments["breakfast"] = rng.random() < 0.5
        ask += " with breakfast" if arguments["breakfast"] else " without breakfast"
    return ask + ".", arguments, {"booked": True}, f"The {room} room is booked for {name}."


@tool("Translate a text.", ["text", "language"], text=STRING, language=STRING)
def translate(rng, w):
    text, language = w.note(), rng.choice(("French", "German", "Spanish", "Italian", "Polish", "Greek", "Swedish"))
    return (
        pick(rng, ("Translate this into {1}: {0}", "How do you say in {1}: {0}")).format(text, language),
        {"text": text, "language": language},
        {"ok": True},
        f"I translated it into {language}.",
    )


@tool("Get the price of a thing.", ["item"], item=STRING, currency=choice("euro", "dollar", "pound"))
def get_price(rng, w):
    item, price = rng.choice(lex.OBJECTS + lex.FOODS), rng.randrange(1, 400) / 4
    arguments = {"item": item}
    ask = pick(rng, ("How much is the {}", "What does the {} cost", "Tell me the price of the {}")).format(item)
    if rng.random() < 0.5:
        arguments["currency"] = rng.choice(("euro", "dollar", "pound"))
        ask += f" in {arguments['currency']}"
    return ask + "?", arguments, {"price": price}, f"The {item} costs {price}."


@tool("Draw points on a map.", ["points"], points=array(array(NUMBER)), title=STRING)
def draw_points(rng, w):
    points = [[rng.randrange(0, 100), rng.randrange(0, 100)] for _ in range(rng.randrange(1, 4))]
    arguments = {"points": points}
    ask = "Draw the points " + w.listed([f"({x}, {y})" for x, y in points])
    if rng.random() < 0.5:
        arguments["title"] = surname(rng)
        ask += f" with the title {arguments['title']}"
    return ask + ".", arguments, {"ok": True}, "The points are on the map."


@tool("Get the time in a city.", ["city"], city=STRING)
def get_time(rng, w):
    city, time = w.place(), w.time()
    return (
        pick(rng, ("What time is it in {}?", "Tell me the time in {}.", "How late is it in {}?")).format(city),
        {"city": city},
        {"time": time},
        f"In {city} it is {time}.",
    )


@tool("Write a note.", ["text"], text=STRING, pinned=BOOLEAN, tags=array(STRING))
def write_note(rng, w):
    text = w.note()
    arguments = {"text": text}
    ask = pick(rng, ("Note: {}", "Write this down: {}", "Make a note: {}")).format(text)
    if rng.random() < 0.4:
        arguments["pinned"] = True
        ask += ". Pin it"
    if rng.random() < 0.4:
        arguments["tags"] = rng.sample(("home", "work", "shopping", "garden"), rng.randrange(1, 3))
        ask += f". Tags: {w.listed(arguments['tags'])}"
    return ask + ".", arguments, {"ok": True}, "I wrote it down."


NO_TOOL = (
    ("Hello!", "Hello! How can I help you?"),
    ("Thank you!", "You are welcome!"),
    ("How are you?", "Very well, thank you!"),
    ("Good morning!", "Good morning! What can I do for you?"),
    ("What can you do?", "I can answer small questions and use my tools."),
)


def tool_use(rng, room, held_out=False):
    """One conversation with one to four tools declared, calls of one or two of them, and maybe their responses."""
    w = Words(rng, held_out)
    names = rng.sample(sorted(TOOLS), rng.choice((1, 1, 2, 2, 3, 4)) if room > 1800 else rng.choice((1, 1, 2)))
    head = (
        [system(pick(rng, ("You are a helpful assistant.", "Use the tools when they help.", "Be brief.")))]
        if rng.random() < 0.3
        else []
    )
    messages = [*head]
    if rng.random() < 0.12:
        ask, answer = pick(rng, NO_TOOL)
        messages += [user(ask), assistant(answer, "I need no tool for this." if rng.random() < 0.4 else "")]
    for _ in range(rng.choice((1, 1, 1, 2)) if len(messages) == len(head) or rng.random() < 0.5 else 0):
        messages += one_request(rng, w, names)
    declared = [TOOLS[n][0] for n in names]
    return trim_to_last(rng, Conversation("tools", messages, declared))


def one_request(rng, w, names):
    """User, call (or two), responses, answer."""
    chosen = rng.sample(names, 2) if len(names) > 1 and rng.random() < 0.2 else [rng.choice(names)]
    made = [(n, *TOOLS[n][1](rng, w)) for n in chosen]
    request = (
        " ".join(m[1] for m in made)
        if len(made) == 1
        else made[0][1] + " " + some(rng, "And then: ", "Also: ", "") + made[1][1]
    )
    reasoning = (
        some(rng, f"I need {' and '.join(chosen)} for this.", f"I should call {' and '.join(chosen)}.")
        if rng.random() < 0.4
        else ""
    )
    lead = some(rng, "I will do that.", "One moment.", "Let me see.") if rng.random() < 0.15 else ""
    calls = [call(n, arguments) for n, _, arguments, _, _ in made]
    results = [{"role": "tool", "content": json.dumps(m[3])} for m in made]
    answer = " ".join(m[4] for m in made)
    return [
        user(request),
        assistant(lead, reasoning, tool_calls=calls),
        *results,
        assistant(answer, "The tool has answered." if rng.random() < 0.3 else ""),
    ]


def trim_to_last(rng, conversation):
    """Half of the conversations end with the call, as a client sees it; the others with the final answer."""
    if rng.random() < 0.5:
        calling = [i for i, m in enumerate(conversation.messages) if m.get("tool_calls")]
        del conversation.messages[calling[-1] + 1 if calling else len(conversation.messages) :]
    return conversation
