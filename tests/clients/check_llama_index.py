"""LlamaIndex, with its model of servers like OpenAI's."""

import openai
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from shared import BUILT_IN, KEY, PAINT, PAINTED, SCRIPTED, TOO_LONG, Painting, Raises, painting_tool

APIS = ("/v1/chat/completions",)
HELLO = [ChatMessage(role="user", content="hello")]


def model(url, key, **settings):
    abilities = {"is_chat_model": True, "is_function_calling_model": True, "should_use_structured_outputs": True}
    return OpenAILike(model="m", api_base=url + "/v1", api_key=key, max_retries=0, **abilities, **settings)


def free(**settings):
    return model(BUILT_IN, "none", **settings)


def check_stream():
    greedy = free(temperature=0, max_tokens=16)
    whole = greedy.chat(HELLO)
    assert whole.raw.usage.completion_tokens == 16
    assert "".join(piece.delta or "" for piece in greedy.stream_chat(HELLO)) == whole.message.content


async def check_tools():
    for streams in (False, True):
        paint, calls = painting_tool()
        tools = [FunctionTool.from_defaults(paint)]
        running = FunctionAgent(llm=model(SCRIPTED, KEY), tools=tools, streaming=streams).run("say paint")
        text = "".join([event.delta async for event in running.stream_events() if isinstance(event, AgentStream)])
        assert str(await running) == PAINTED
        assert text == (PAINTED if streams else ""), text
        assert calls == [PAINT]


def check_structured_output():
    painted = free(max_tokens=900).as_structured_llm(Painting).chat(HELLO)
    assert isinstance(painted.raw, Painting)


def check_errors():
    with Raises(openai.BadRequestError):
        free(additional_kwargs={"top_p": 9}).chat(HELLO)
    with Raises(openai.BadRequestError):
        free().chat([ChatMessage(role="user", content=TOO_LONG)])
    with Raises(openai.AuthenticationError):
        model(SCRIPTED, "another").chat(HELLO)
