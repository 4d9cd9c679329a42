"""LlamaIndex, with its models for OpenAI-compatible servers."""

import openai
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from shared import BUILT_IN, KEY, PAINT, PAINTED, SCRIPTED, TOO_LONG, Painting, Raises, painting_tool

APIS = ("/v1/chat/completions", "/v1/responses")
HELLO = [ChatMessage(role="user", content="hello")]


def model(api, url, key, **settings):
    settings |= {"model": "m", "api_base": url + "/v1", "api_key": key, "max_retries": 0}
    settings |= {"is_function_calling_model": True}
    if api == "/v1/responses":
        return OpenAILikeResponses(**settings)
    return OpenAILike(**settings, is_chat_model=True, should_use_structured_outputs=True)


def free(api, **settings):
    return model(api, BUILT_IN, "none", **settings)


def limit(api, tokens):
    return {"max_output_tokens" if api == "/v1/responses" else "max_tokens": tokens}


def check_stream(api):
    greedy = free(api, temperature=0, **limit(api, 16))
    whole = greedy.chat(HELLO)
    usage = whole.raw.usage
    assert (usage.output_tokens if api == "/v1/responses" else usage.completion_tokens) == 16
    assert "".join(piece.delta or "" for piece in greedy.stream_chat(HELLO)) == whole.message.content


async def check_tools(api):
    for streams in (False, True):
        paint, calls = painting_tool()
        tools = [FunctionTool.from_defaults(paint)]
        running = FunctionAgent(llm=model(api, SCRIPTED, KEY), tools=tools, streaming=streams).run("say paint")
        text = "".join([event.delta async for event in running.stream_events() if isinstance(event, AgentStream)])
        assert str(await running) == PAINTED
        assert text == (PAINTED if streams else ""), text
        assert calls == [PAINT]


def check_structured_output(api):
    painted = free(api, **limit(api, 900)).as_structured_llm(Painting).chat(HELLO)
    assert isinstance(painted.raw, Painting)


def check_errors(api):
    with Raises(openai.BadRequestError):
        free(api, additional_kwargs={"top_p": 9}).chat(HELLO)
    with Raises(openai.BadRequestError):
        free(api).chat([ChatMessage(role="user", content=TOO_LONG)])
    with Raises(openai.AuthenticationError):
        model(api, SCRIPTED, "another").chat(HELLO)
