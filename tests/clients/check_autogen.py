"""AutoGen: an assistant that uses its client for OpenAI's API."""

import openai
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from shared import BUILT_IN, KEY, PAINT, PAINTED, SCRIPTED, TOO_LONG, Painting, Raises, painting_tool

APIS = ("/v1/chat/completions",)
ABILITIES = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True}
MODEL = {"model": "m", "model_info": ABILITIES | {"family": "unknown"}, "max_retries": 0}
HELLO = [UserMessage(content="hello", source="user")]


def model(url, key, **settings):
    return OpenAIChatCompletionClient(**MODEL, base_url=url + "/v1", api_key=key, **settings)


def free(**settings):
    return model(BUILT_IN, "none", **settings)


async def check_stream():
    greedy = free(temperature=0, max_tokens=16)
    whole = await greedy.create(HELLO)
    assert whole.usage.completion_tokens == 16
    *pieces, last = [piece async for piece in greedy.create_stream(HELLO, include_usage=True)]
    assert "".join(pieces) == last.content == whole.content
    assert last.usage.completion_tokens == 16


async def check_tools():
    for streams in (False, True):
        paint, calls = painting_tool()
        options = {"tools": [paint], "max_tool_iterations": 3, "model_client_stream": streams}
        painter = AssistantAgent("painter", model(SCRIPTED, KEY), **options)
        seen = [event async for event in painter.run_stream(task="say paint")]
        assert seen[-1].messages[-1].content == PAINTED
        pieces = [event.content for event in seen if isinstance(event, ModelClientStreamingChunkEvent)]
        assert "".join(pieces) == (PAINTED if streams else ""), pieces
        assert calls == [PAINT]


async def check_structured_output():
    painted = await free(max_tokens=900).create(HELLO, json_output=Painting)
    Painting.model_validate_json(painted.content)


async def check_errors():
    with Raises(openai.BadRequestError):
        await free(temperature=9).create(HELLO)
    with Raises(openai.BadRequestError):
        await free().create([UserMessage(content=TOO_LONG, source="user")])
    with Raises(openai.AuthenticationError):
        await model(SCRIPTED, "another").create(HELLO)
