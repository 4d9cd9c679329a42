"""OpenAI's Agents SDK, with both of its models."""

import asyncio

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import ResponseTextDeltaEvent
from shared import BUILT_IN, KEY, PAINT, PAINTED, SCRIPTED, TOO_LONG, Painting, Raises, example, painting_tool

APIS = ("/v1/chat/completions", "/v1/responses")
MODELS = {APIS[0]: OpenAIChatCompletionsModel, APIS[1]: OpenAIResponsesModel}

set_tracing_disabled(True)


def agent(api, url, key, settings=None, **options):
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
    model = MODELS[api](model="m", openai_client=client)
    return Agent(
        "painter", instructions="Be brief.", model=model, model_settings=settings or ModelSettings(), **options
    )


def free(api, settings=None, **options):
    return agent(api, BUILT_IN, "none", settings, **options)


def scripted(api, **options):
    return agent(api, SCRIPTED, KEY, **options)


async def streamed(agent, text):
    """The streamed text, and the final output."""
    running = Runner.run_streamed(agent, text)
    pieces = [
        event.data.delta
        async for event in running.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    return "".join(pieces), running.final_output


async def check_stream(api):
    whole = await Runner.run(scripted(api), "say painted")
    assert whole.final_output == PAINTED
    assert whole.context_wrapper.usage.output_tokens > len(PAINTED) // 2
    assert await streamed(scripted(api), "say painted") == (PAINTED, PAINTED)


async def check_tools(api):
    paint, calls = painting_tool()
    painter = scripted(api, tools=[function_tool(paint)])
    assert (await Runner.run(painter, "say paint")).final_output == PAINTED
    assert await streamed(painter, "say paint") == (PAINTED, PAINTED)
    assert calls == [PAINT, PAINT]


async def check_structured_output(api):
    settings = ModelSettings(max_tokens=900)
    painted = await Runner.run(free(api, settings, output_type=Painting), "hello")
    assert isinstance(painted.final_output, Painting)


async def check_errors(api):
    with Raises(openai.BadRequestError):
        await Runner.run(free(api, ModelSettings(temperature=9)), "hello")
    with Raises(openai.BadRequestError):
        await Runner.run(free(api), TOO_LONG)
    with Raises(openai.AuthenticationError):
        await Runner.run(agent(api, SCRIPTED, "another"), "hello")


async def check_example():
    printed = await asyncio.to_thread(example, "agent.py")  # it runs its own event loop
    assert printed == "get_weather('Paris')\nIt is sunny in Paris, 21 degrees.\n"
