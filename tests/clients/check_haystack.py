"""Haystack's generators for OpenAI's two APIs, and its agent."""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

import openai
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from shared import BUILT_IN, KEY, PAINT, PAINTED, SCHEMA, SCRIPTED, TOO_LONG, Painting, Raises, painting_tool

APIS = ("/v1/chat/completions", "/v1/responses")
GENERATORS = {APIS[0]: OpenAIChatGenerator, APIS[1]: OpenAIResponsesChatGenerator}
LENGTHS = {APIS[0]: "max_completion_tokens", APIS[1]: "max_output_tokens"}
FORMATS = {APIS[0]: "response_format", APIS[1]: "text_format"}
HELLO = [ChatMessage.from_user("hello")]


def generator(api, url=BUILT_IN, key="none", **settings):
    requested = {"model": "m", "api_base_url": url + "/v1", "api_key": Secret.from_token(key), "max_retries": 0}
    return GENERATORS[api](**requested, generation_kwargs=settings)


def check_stream(api):
    greedy = generator(api, temperature=0, **{LENGTHS[api]: 16})
    (whole,) = greedy.run(HELLO)["replies"]
    pieces = []
    (reply,) = greedy.run(HELLO, streaming_callback=lambda piece: pieces.append(piece.content))["replies"]
    assert "".join(pieces) == reply.text == whole.text


def check_tools(api):
    for pieces in (None, []):
        paint, calls = painting_tool()
        tools = [Tool("paint", "paints", SCHEMA, paint)]
        agent = Agent(chat_generator=generator(api, SCRIPTED, KEY), tools=tools, max_agent_steps=3)
        callback = None if pieces is None else lambda piece, pieces=pieces: pieces.append(piece.content)
        requested = [ChatMessage.from_user("say paint")]
        assert agent.run(requested, streaming_callback=callback)["last_message"].text == PAINTED
        assert calls == [PAINT]
        assert pieces is None or PAINTED in "".join(pieces)


def check_structured_output(api):
    requested = {FORMATS[api]: Painting, LENGTHS[api]: 900}
    (reply,) = generator(api, **requested).run(HELLO)["replies"]
    Painting.model_validate_json(reply.text)


def check_errors(api):
    with Raises(openai.BadRequestError):
        generator(api, temperature=9).run(HELLO)
    with Raises(openai.BadRequestError):
        generator(api).run([ChatMessage.from_user(TOO_LONG)])
    with Raises(openai.AuthenticationError):
        generator(api, SCRIPTED, "another").run(HELLO)
