"""Error messages for fields with a wrong type or value: they list the allowed values, in the client's terms."""

import json

import pytest

from ballast.errors import RequestError
from ballast.wire.anthropic.request import parse_messages, to_chat
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.llama_cpp.request import LlamaRequest, parse_llama
from ballast.wire.ollama.request import OllamaChatRequest, parse_ollama
from ballast.wire.openai.request import ChatCompletionRequest, parse_body

MAX_TOKENS = 100
MESSAGES = [{"role": "user", "content": "hi"}]


def openai(body):
    parse_body(ChatCompletionRequest, body, MAX_TOKENS, IgnoredFields())


def llama(body):
    parse_llama(LlamaRequest, body, MAX_TOKENS, IgnoredFields())


def ollama(body):
    parse_ollama(OllamaChatRequest, body, MAX_TOKENS, IgnoredFields())


def anthropic(body):
    to_chat(parse_messages(body, MAX_TOKENS, IgnoredFields()), IgnoredFields())


@pytest.mark.parametrize(
    ("read", "fields", "message"),
    [
        (openai, {"temperature": 9}, "temperature: must be at most 5"),
        (openai, {"repetition_penalty": 0}, "repetition_penalty: must be at least 0.01"),
        (openai, {"temperature": "1"}, "temperature: must be a number"),
        (openai, {"max_tokens": 1.5}, "max_tokens: must be a whole number"),
        (openai, {"model": 5}, "model: must be a string"),
        (openai, {"stream": "yes"}, "stream: must be true or false"),
        (openai, {"stop": 5}, "stop: must be a string or a list of strings"),
        (openai, {"stop": [""]}, "stop.0: must not be empty"),
        (openai, {"thinking": 5}, "thinking: must be an object or true or false"),
        (
            openai,
            {"response_format": {"type": "xml"}},
            "response_format.type: must be 'text', 'json_object' or 'json_schema'",
        ),
        (llama, {"logit_bias": [[1, "x"]]}, "logit_bias: must be a number"),
        (llama, {"logit_bias": [[0, "x"]]}, "logit_bias.0: must be a number"),
        (ollama, {"format": "xml"}, "format: must be 'json' or '' or an object"),
        (ollama, {"think": 5}, "think: must be true or false or 'low', 'medium', 'high' or 'max'"),
        (ollama, {"options": {"stop": 5}}, "options.stop: must be a string or a list"),
        (anthropic, {"system": 5}, "system: must be a string or a list"),
        (anthropic, {"system": [{"type": "text"}]}, "system.0.text: must be a string"),
    ],
)
def test_a_message_lists_the_allowed_values(read, fields, message):
    body = {"model": "m", "messages": MESSAGES, "prompt": "hi", "max_tokens": 2}
    if read is ollama:
        del body["max_tokens"]
    with pytest.raises(RequestError) as refused:
        read(json.dumps(body | fields).encode())
    assert refused.value.message == message
