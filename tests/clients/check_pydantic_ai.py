"""Pydantic AI, with each provider that supports a custom server."""

import asyncio

from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from shared import BUILT_IN, KEY, PAINT, PAINTED, SCRIPTED, TOO_LONG, Painting, Raises, painting_tool

APIS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
MODELS = {APIS[0]: OpenAIChatModel, APIS[1]: OpenAIResponsesModel}


def model(api, url, key):
    if api == "/v1/messages":  # its request depends on the model's name
        return AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(base_url=url, api_key=key))
    return MODELS[api]("m", provider=OpenAIProvider(base_url=url + "/v1", api_key=key))


def free(api, **options):
    return Agent(model(api, BUILT_IN, "none"), **options)


def scripted(api, **options):
    return Agent(model(api, SCRIPTED, KEY), **options)


async def streamed(agent, text, **settings):
    async with agent.run_stream(text, model_settings=settings) as reply:
        return "".join([piece async for piece in reply.stream_text(delta=True, debounce_by=None)])


def check_stream(api):
    greedy = {"temperature": 0, "max_tokens": 16}
    whole = free(api).run_sync("hello", model_settings=greedy)
    assert whole.usage.output_tokens == 16
    assert asyncio.run(streamed(free(api), "hello", **greedy)) == whole.output


def check_tools(api):
    paint, calls = painting_tool()
    painter = scripted(api, tools=[paint])
    assert painter.run_sync("say paint").output == PAINTED
    assert asyncio.run(streamed(painter, "say paint")) == PAINTED
    assert calls == [PAINT, PAINT]


def check_structured_output(api):
    for form in (ToolOutput(Painting), NativeOutput(Painting)):
        painted = free(api, output_type=form).run_sync("hello", model_settings={"max_tokens": 900}).output
        assert isinstance(painted, Painting), form


def check_errors(api):
    for text, settings in (("hello", {"temperature": 9}), (TOO_LONG, {})):
        with Raises(ModelHTTPError) as raised:
            free(api).run_sync(text, model_settings=settings)
        assert raised.error.status_code == 400
    with Raises(ModelHTTPError) as raised:
        Agent(model(api, SCRIPTED, "another")).run_sync("hello")
    assert raised.error.status_code == 401
