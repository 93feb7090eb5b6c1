"""Conversations: how they are written as text, in the exact form of `chat_template.jinja`, with a weight per piece.

A message is a dict as transformers' `apply_chat_template` takes it; keys that begin with an underscore are ours:
`_weight` (loss weight of the content; default 1 for the assistant, `USER_WEIGHT` for others) and `_values`
(substrings that are the point of an answer and weigh `VALUE_WEIGHT`, or of a prompt and weigh nothing).
`_source` is the part of the prompt that an answer comes from. A piece of weight 0 costs neither head nor loss, so long texts in prompts are supervised in one conversation of a few
with a higher weight instead of in all with a low one.
`test_corpus.py` holds `render` and the template together.
"""

import json
import zlib
from dataclasses import dataclass, field

USER_WEIGHT = 0.15
VALUE_WEIGHT = 3.0
MARKUP_WEIGHT = 0.1  # markup that the prompt contains at run time, such as the opening of a turn
TOOLS_HEAD = "# Tools\n\nYou can call these functions:\n\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\nTo call a function, answer with nothing after it but this:\n\n<tool_call>\n<function=name>\n"
    "<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>\n\nGive every required parameter. If no function "
    "fits, answer as usual."
)


@dataclass
class Conversation:
    """One training or test conversation; the last message is the assistant's."""

    task: str
    messages: list
    tools: list = field(default_factory=list)
    expect: list = field(default_factory=list)  # values that a right last answer contains

    @property
    def thinks(self):
        return bool(self.messages[-1].get("reasoning_content"))

    def prompt(self):
        """What `apply_chat_template` is given to have the last message generated."""
        return [clean(m) for m in self.messages[:-1]]


def one_in(n, text):
    """A coin that falls the same way whenever it is thrown for this text."""
    return zlib.crc32(text.encode()) % n == 0


def clean(message):
    """The message without our own keys."""
    return {k: v for k, v in message.items() if not k.startswith("_")}


def user(text, **extra):
    return {"role": "user", "content": text, **extra}


def assistant(text, reasoning="", **extra):
    message = {"role": "assistant", "content": text, **extra}
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def system(text):
    return {"role": "system", "content": text}


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def argument_text(value):
    """A parameter's value as the template writes it: JSON for lists and objects, Python's `str` otherwise."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


def weigh(text, weight, values, value_weight=VALUE_WEIGHT):
    """`text` as pieces of (text, weight) in which every occurrence of a value weighs more."""
    if not values:
        return [(text, weight)]
    cut = min(((text.find(v), v) for v in values if v in text), default=(-1, ""))
    if cut[0] < 0:
        return [(text, weight)]
    at, value = cut
    return [(text[:at], weight), (value, value_weight), *weigh(text[at + len(value) :], weight, values, value_weight)]


def call_pieces(tool_call, lead):
    """A tool call; all of it is supervised, the values of the arguments twice as much."""
    function = tool_call["function"]
    pieces = [(f"{lead}<tool_call>\n<function={function['name']}>\n", 1.0)]
    for key, value in function["arguments"].items():
        pieces += [(f"<parameter={key}>\n", 1.0), (argument_text(value), 2.0), ("\n</parameter>\n", 1.0)]
    return [*pieces, ("</function>\n</tool_call>", 1.0)]


def assistant_pieces(message, fresh):
    """An assistant's turn. `fresh`: it follows the last user message, so its thinking is kept."""
    content, reasoning = message["content"].strip(), message.get("reasoning_content", "").strip()
    values = message.get("_values", ())
    pieces = [("<|im_start|>assistant\n", MARKUP_WEIGHT)]
    if fresh and reasoning:
        pieces += [("<think>\n", MARKUP_WEIGHT), *weigh(reasoning, 1.0, values), ("\n</think>\n\n", 1.0)]
    elif fresh:
        pieces.append(("<think>\n\n</think>\n\n", MARKUP_WEIGHT))
    pieces += weigh(content, message.get("_weight", 1.0), values)
    for i, tool_call in enumerate(message.get("tool_calls", ())):
        pieces += call_pieces(tool_call, "\n" if i else "\n\n" if content else "")
    return [*pieces, ("<|im_end|>", 1.0), ("\n", MARKUP_WEIGHT)]


def system_pieces(conversation):
    """The system turn with the declarations of tools, if there is one."""
    first = conversation.messages[0]
    said = first["content"].strip() if first["role"] == "system" else ""
    if conversation.tools:
        declared = "".join("\n" + json.dumps(t, ensure_ascii=False) for t in conversation.tools)
        text = TOOLS_HEAD + declared + TOOLS_TAIL + ("\n\n" + said if said else "")
    elif first["role"] == "system":
        text = said
    else:
        return []
    weight = (0.3 if one_in(8, text) else 0.0) if conversation.tools else USER_WEIGHT
    return [("<|im_start|>system\n", MARKUP_WEIGHT), (text, weight), ("<|im_end|>\n", MARKUP_WEIGHT)]


def render(conversation):
    """The conversation as pieces of (text, weight)."""
    messages = conversation.messages
    last_query = max(i for i, m in enumerate(messages) if m["role"] == "user")
    pieces = system_pieces(conversation)
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            weight = message.get("_weight", USER_WEIGHT)
            pieces += [
                ("<|im_start|>user\n", MARKUP_WEIGHT),
                *weigh(message["content"].strip(), weight, message.get("_values"), 0.0),
                ("<|im_end|>\n", MARKUP_WEIGHT),
            ]
        elif role == "assistant":
            pieces += assistant_pieces(message, i > last_query)
        elif role == "tool":
            if messages[i - 1]["role"] != "tool":
                pieces.append(("<|im_start|>user", MARKUP_WEIGHT))
            pieces.append((f"\n<tool_response>\n{message['content'].strip()}\n</tool_response>", MARKUP_WEIGHT))
            if i + 1 == len(messages) or messages[i + 1]["role"] != "tool":
                pieces.append(("<|im_end|>\n", MARKUP_WEIGHT))
    return pieces
