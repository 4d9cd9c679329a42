"""LangChain's client for OpenAI's API."""

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from shared import (
    BUILT_IN,
    CHOICE,
    FUNCTION,
    KEY,
    PAINT,
    PAINTED,
    RESULT,
    SCHEMA,
    SCRIPTED,
    TOO_LONG,
    Painting,
    Raises,
    example,
)

APIS = ("/v1/chat/completions",)
MODEL = {"base_url": BUILT_IN + "/v1", "api_key": "none", "model": "m", "max_retries": 0, "seed": 3}
free = ChatOpenAI(**MODEL, temperature=1, max_tokens=900)
scripted = ChatOpenAI(**MODEL | {"base_url": SCRIPTED + "/v1", "api_key": KEY})


def check_stream():
    greedy = ChatOpenAI(**MODEL, temperature=0, max_tokens=16)
    whole = greedy.invoke("hello")
    assert whole.usage_metadata["output_tokens"] == 16
    assert "".join(chunk.content for chunk in greedy.stream("hello")) == whole.content


def check_tools():
    (call,) = free.bind_tools([FUNCTION], tool_choice=CHOICE).invoke("hello").tool_calls
    assert call["name"] == "paint"
    Painting.model_validate(call["args"])
    messages = [HumanMessage("say paint")]
    bound = scripted.bind_tools([FUNCTION])
    called = bound.invoke(messages)
    assert called.tool_calls[0]["args"] == PAINT
    messages += [called, ToolMessage(RESULT, tool_call_id=called.tool_calls[0]["id"])]
    assert bound.invoke(messages).content == PAINTED


def check_structured_output():
    titled = {"title": "painting", "description": "a painting", **SCHEMA}
    painted = free.with_structured_output(titled, method="json_schema").invoke("hello")
    Painting.model_validate(painted)


def check_errors():
    with Raises(openai.BadRequestError):
        ChatOpenAI(**MODEL, temperature=9).invoke("hello")
    with Raises(openai.BadRequestError):
        free.invoke(TOO_LONG)
    with Raises(openai.AuthenticationError):
        ChatOpenAI(**MODEL | {"base_url": SCRIPTED + "/v1", "api_key": "another"}).invoke("hello")


def check_example():
    printed = example("langchain_chat.py")
    assert "mixture-of-experts" in printed
    assert "get_weather {'city': 'Paris'}\nIt is sunny in Paris, 21 degrees." in printed
