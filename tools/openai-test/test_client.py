"""OpenAI's own client against `basert serve`: what its users rely on, whatever the model says."""

import json
import re
import time
import typing
import unittest
from pathlib import Path

import openai
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from serving import KEY, Server

HELLO = [{"role": "user", "content": "Hello, who are you?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


def function(name):
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": f"The {name}.", "parameters": parameters}}


TOOLS = [function("weather"), function("forecast")]


class Folded:
    """A stream of chat chunks, put together as an application does it."""

    def __init__(self, stream):
        self.content, self.reasoning, self.calls, self.logprobs = {}, {}, {}, []
        self.finish, self.usage, self.chunks = {}, None, 0
        for chunk in stream:
            self.chunks += 1
            self.usage = chunk.usage or self.usage
            for choice in chunk.choices:
                self.take(choice)

    def take(self, choice):
        index, delta = choice.index, choice.delta
        self.content[index] = self.content.get(index, "") + (delta.content or "")
        self.reasoning[index] = self.reasoning.get(index, "") + (getattr(delta, "reasoning_content", None) or "")
        self.finish[index] = choice.finish_reason or self.finish.get(index)
        if choice.logprobs:
            self.logprobs += choice.logprobs.content
        for call in delta.tool_calls or []:
            calls = self.calls.setdefault(index, [])
            if call.index == len(calls):
                calls.append([call.id, call.function.name, ""])
            calls[call.index][2] += call.function.arguments or ""


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", KEY, "--context", "2048")
        cls.client = cls.server.client()
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0

    def chat(self, messages=HELLO, **wishes):
        wishes = {"model": self.model, "max_tokens": 48, "seed": 7, **wishes}
        return self.client.chat.completions.create(messages=messages, **wishes)

    def token(self, text):
        body = {"content": text, "parse_special": True}
        found = self.client.post("/tokenize", body=body, cast_to=object)["tokens"]
        self.assertEqual(len(found), 1)
        return found[0]

    def test_models_are_listed(self):
        listed = self.client.models.list().data
        self.assertEqual([model.id for model in listed], [self.model])
        one = self.client.models.retrieve(self.model)
        self.assertEqual((one.id, one.object), (self.model, "model"))
        self.assertGreater(one.created, 0)

    def test_every_field_of_the_client_is_in_the_table_of_fields(self):
        rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) \|", Path("docs/api.md").read_text(), re.MULTILINE)
        for column, params in [(1, chat_create_params), (2, completion_create_params)]:
            known = {row[0] for row in rows if row[column] != "–"}
            fields = set(typing.get_type_hints(params.CompletionCreateParamsStreaming))
            self.assertIn("stream", fields)
            self.assertEqual(fields - known, set())

    def test_a_stream_is_the_whole_answer(self):
        for wishes in [{"temperature": 0}, {"temperature": 1}, {"extra_body": {"enable_thinking": True}}]:
            whole = self.chat(**wishes)
            folded = Folded(self.chat(**wishes, stream=True, stream_options={"include_usage": True}))
            choice = whole.choices[0]
            self.assertEqual(folded.content[0], choice.message.content)
            self.assertEqual(folded.reasoning[0], getattr(choice.message, "reasoning_content", ""))
            self.assertEqual(folded.finish[0], choice.finish_reason)
            self.assertEqual(folded.usage.completion_tokens, whole.usage.completion_tokens)
            self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
            self.assertGreater(folded.chunks, 2)

    def test_answers_of_several_differ_and_keep_their_seeds(self):
        several = self.chat(n=3, temperature=1, max_tokens=24)
        self.assertEqual([choice.index for choice in several.choices], [0, 1, 2])
        alone = [self.chat(temperature=1, max_tokens=24, seed=7 + i).choices[0].message.content for i in range(3)]
        self.assertEqual([choice.message.content for choice in several.choices], alone)
        folded = Folded(self.chat(n=3, temperature=1, max_tokens=24, stream=True))
        self.assertEqual([folded.content[i] for i in range(3)], alone)

    def test_stop_strings_end_an_answer(self):
        whole = self.chat(temperature=0).choices[0].message.content
        stop = whole[4:9]
        choice = self.chat(temperature=0, stop=[stop, "never said"]).choices[0]
        self.assertEqual((choice.message.content, choice.finish_reason), (whole[: whole.index(stop)], "stop"))
        folded = Folded(self.chat(temperature=0, stop=stop, stream=True))
        self.assertEqual((folded.content[0], folded.finish[0]), (choice.message.content, "stop"))

    def test_an_answer_that_is_too_long_says_so(self):
        choice = self.chat(max_tokens=3, extra_body={"ignore_eos": True}).choices[0]
        self.assertEqual(choice.finish_reason, "length")

    def test_log_probabilities_spell_the_answer(self):
        wishes = {"temperature": 0, "logprobs": True, "top_logprobs": 3}
        choice = self.chat(**wishes).choices[0]
        tokens = choice.logprobs.content
        spelled = b"".join(bytes(token.bytes) for token in tokens).decode()
        self.assertIn(choice.message.content, spelled)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.top_logprobs[0].token, token.token)
            self.assertLessEqual(token.logprob, 0)
        folded = Folded(self.chat(**wishes, stream=True))
        self.assertEqual([token.logprob for token in folded.logprobs], [token.logprob for token in tokens])

    def test_a_schema_is_followed(self):
        schema = {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "sunny": {"type": "boolean"}},
            "required": ["city", "sunny"],
            "additionalProperties": False,
        }
        answer_format = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": schema}}
        choice = self.chat(WEATHER, temperature=0, response_format=answer_format, max_tokens=200).choices[0]
        self.assertEqual(choice.finish_reason, "stop")
        found = json.loads(choice.message.content)
        self.assertIn(found["city"], ["Paris", "Rome"])
        self.assertIsInstance(found["sunny"], bool)
        folded = Folded(self.chat(WEATHER, temperature=0, response_format=answer_format, max_tokens=200, stream=True))
        self.assertEqual(folded.content[0], choice.message.content)

    def test_required_and_named_functions_are_called(self):
        for choice in ["required", {"type": "function", "function": {"name": "forecast"}}]:
            wishes = {"tools": TOOLS, "tool_choice": choice, "temperature": 0, "max_tokens": 200}
            answer = self.chat(WEATHER, **wishes, parallel_tool_calls=False).choices[0]
            self.assertEqual(answer.finish_reason, "tool_calls")
            call = answer.message.tool_calls[0]
            arguments = json.loads(call.function.arguments)
            self.assertIn(arguments["city"], ["Paris", "Rome"])
            if choice != "required":
                self.assertEqual(call.function.name, "forecast")
            folded = Folded(self.chat(WEATHER, **wishes, parallel_tool_calls=False, stream=True))
            self.assertEqual(folded.finish[0], "tool_calls")
            self.assertEqual([call[1:] for call in folded.calls[0]], [[call.function.name, call.function.arguments]])

    def test_a_function_is_called_and_its_result_is_read(self):
        choice = self.chat(WEATHER, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=200)
        message = choice.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": '{"sky": "clear"}'}
        history = [*WEATHER, message.model_dump(exclude_none=True), result]
        answer = self.chat(history, tools=TOOLS, tool_choice="none").choices[0]
        self.assertIsNone(answer.message.tool_calls)
        self.assertIn(answer.finish_reason, ["stop", "length"])

    def test_the_clients_stream_helper_understands_the_events(self):
        wishes = {"model": self.model, "tools": TOOLS, "tool_choice": "required", "temperature": 0, "max_tokens": 200}
        with self.client.chat.completions.stream(messages=WEATHER, parallel_tool_calls=False, **wishes) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertIn("tool_calls.function.arguments.done", kinds)
        self.assertIn("city", json.loads(final.choices[0].message.tool_calls[0].function.arguments))

    def test_completions_echo_and_score_their_prompt(self):
        create = self.client.completions.create
        scored = create(model=self.model, prompt="The cat sat", max_tokens=0, echo=True, logprobs=1)
        choice = scored.choices[0]
        self.assertEqual((choice.text, choice.logprobs.token_logprobs[0]), ("The cat sat", None))
        self.assertEqual("".join(choice.logprobs.tokens), "The cat sat")
        # As lm-evaluation-harness asks, which leaves out the last entry: that of the answer, or of its end.
        wishes = {"max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
        prompts = [[40, 50, 60], [70, 80]]
        end = self.token("<|im_end|>")
        for bias in [{}, {str(end): 100}]:
            scored = create(model=self.model, prompt=prompts, logit_bias=bias, **wishes)
            for choice, prompt in zip(scored.choices, prompts):
                self.assertIn(choice.finish_reason, ["stop"] if bias else ["stop", "length"])
                self.assertEqual(len(choice.logprobs.token_logprobs), len(prompt) + 1)
        wishes = {"model": self.model, "prompt": ["The cat", "A dog"], "max_tokens": 8, "seed": 3}
        whole = [choice.text for choice in create(**wishes).choices]
        streamed = ["", ""]
        for chunk in create(**wishes, stream=True):
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
        self.assertEqual(streamed, whole)

    def test_errors_are_the_clients_own(self):
        for mistake, error, param in [
            ({"temperature": 9}, openai.BadRequestError, "temperature"),
            ({"messages": []}, openai.BadRequestError, "messages"),
            ({"model": "../../etc/passwd"}, openai.NotFoundError, "model"),
            ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice"),
            ({"messages": [{"role": "user", "content": "word " * 3000}]}, openai.BadRequestError, None),
        ]:
            for stream in [False, True]:
                with self.subTest(mistake=str(mistake)[:60], stream=stream), self.assertRaises(error) as caught:
                    self.chat(**{**mistake, "stream": stream})
                self.assertEqual(caught.exception.param, param)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_a_false_key_is_an_authentication_error(self):
        with self.server.client("wrong") as stranger, self.assertRaises(openai.AuthenticationError) as caught:
            stranger.models.list()
        self.assertEqual(caught.exception.code, "invalid_api_key")

    def test_a_stream_that_is_closed_ends_its_request(self):
        stream = self.chat(stream=True, max_tokens=1900, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        for _ in range(600):
            if "cancelled" in self.server.answers():
                return
            time.sleep(0.05)
        self.fail("the request goes on")


if __name__ == "__main__":
    unittest.main()
