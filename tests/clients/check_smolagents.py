"""smolagents, with its model class for OpenAI's API."""

import contextlib
import io

import openai
from shared import BUILT_IN, KEY, PAINT, PAINTED, SCRIPTED, SHAPE, TOO_LONG, Raises, assert_painted, painting_tool
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

APIS = ("/v1/chat/completions",)
REQUESTED = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
STRICTLY_ONCE = {"max_retries": 0}


def model(url, key, **settings):
    return OpenAIModel("m", api_base=url + "/v1", api_key=key, client_kwargs=STRICTLY_ONCE, **settings)


def free(**settings):
    return model(BUILT_IN, "none", **settings)


def check_stream():
    greedy = free(temperature=0, max_tokens=16)
    whole = greedy.generate(REQUESTED)
    assert whole.token_usage.output_tokens == 16
    assert "".join(delta.content or "" for delta in greedy.generate_stream(REQUESTED)) == whole.content


def check_tools():
    for streams in (False, True):
        paint, calls = painting_tool("say final")
        options = {"max_steps": 3, "stream_outputs": streams, "verbosity_level": LogLevel.OFF}
        agent = ToolCallingAgent([tool(paint)], model(SCRIPTED, KEY), **options)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints the stream at every log level
            assert agent.run("say paint") == PAINTED
        assert calls == [PAINT]


def check_code_agent():
    paint, calls = painting_tool("say answer")
    agent = CodeAgent([tool(paint)], model(SCRIPTED, KEY), max_steps=3, verbosity_level=LogLevel.OFF)
    assert agent.run("say code") == PAINTED
    assert calls == [PAINT]


def check_structured_output():
    assert_painted(free(max_tokens=900).generate(REQUESTED, response_format=SHAPE).content)


def check_errors():
    with Raises(openai.BadRequestError):
        free(temperature=9).generate(REQUESTED)
    with Raises(openai.BadRequestError):
        free().generate([{"role": "user", "content": [{"type": "text", "text": TOO_LONG}]}])
    with Raises(openai.AuthenticationError):
        model(SCRIPTED, "another").generate(REQUESTED)
