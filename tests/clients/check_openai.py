"""OpenAI's own client, of any major version."""

import asyncio
import json

import openai
from shared import (
    BUILT_IN,
    CHOICE,
    FUNCTION,
    KEY,
    PAINT,
    PAINTED,
    RESULT,
    SCRIPTED,
    SHAPE,
    TOO_LONG,
    Painting,
    Raises,
    assert_painted,
)

APIS = ("/v1/chat/completions",)

client = openai.OpenAI(base_url=BUILT_IN + "/v1", api_key="none", max_retries=0)
scripted = openai.OpenAI(base_url=SCRIPTED + "/v1", api_key=KEY, max_retries=0)
REQUESTED = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "seed": 3}


def check_models():
    assert client.models.list().data[0].object == "model"


def check_stream():
    whole = client.chat.completions.create(**REQUESTED, temperature=0, max_tokens=16)
    assert whole.usage.completion_tokens == 16, whole
    assert whole.choices[0].finish_reason == "length"
    chunks = list(
        client.chat.completions.create(
            **REQUESTED, temperature=0, max_tokens=16, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        whole.choices[0].message.content
    )
    assert chunks[-1].usage.completion_tokens == 16


def check_text_completions():
    reply = client.completions.create(model="m", prompt="Once", max_tokens=4, temperature=0, logprobs=2, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert len(reply.choices[0].logprobs.tokens) == 4


def check_tools():
    forced = {"tools": [FUNCTION], "tool_choice": CHOICE, "max_tokens": 900}
    (call,) = client.chat.completions.create(**REQUESTED, **forced).choices[0].message.tool_calls
    assert call.function.name == "paint"
    assert_painted(call.function.arguments)
    names, arguments = [], ""
    for chunk in client.chat.completions.create(**REQUESTED, **forced, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            assert part.index == 0
            names += [part.function.name] if part.function.name else []
            arguments += part.function.arguments or ""
    assert names == ["paint"]
    assert_painted(arguments)
    messages = [{"role": "user", "content": "say paint"}]
    called = scripted.chat.completions.create(model="m", messages=messages, tools=[FUNCTION]).choices[0].message
    messages += [called, {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": RESULT}]
    reply = scripted.chat.completions.create(model="m", messages=messages, tools=[FUNCTION])
    assert reply.choices[0].message.content == PAINTED


def check_structured_output():
    reply = client.chat.completions.create(**REQUESTED, response_format=SHAPE, max_tokens=900)
    assert_painted(reply.choices[0].message.content)


def check_errors():
    for fields in (
        {"temperature": 9},
        {"messages": [{"role": "user", "content": TOO_LONG}]},
        {"extra_body": {"stop_regex": "a+"}},
    ):
        with Raises(openai.BadRequestError) as raised:
            client.chat.completions.create(**(REQUESTED | fields))
        assert raised.error.status_code == 400
        assert raised.error.request_id
        assert raised.error.body["message"]
    with Raises(openai.NotFoundError) as raised:
        client.models.retrieve("no-such-model")
    assert raised.error.code == "model_not_found"
    with Raises(openai.AuthenticationError):
        scripted.with_options(api_key="another").chat.completions.create(**REQUESTED)


def check_ignored_fields():
    raw = client.chat.completions.with_raw_response.create(**REQUESTED, max_tokens=1, extra_body={"no_such_field": 1})
    assert raw.headers["x-ballast-ignored"] == "no_such_field"


def check_responses():
    whole = client.responses.create(model="m", input="hello", temperature=0, max_output_tokens=16)
    assert whole.usage.output_tokens == 16
    stream = client.responses.create(model="m", input="hello", temperature=0, max_output_tokens=16, stream=True)
    assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == whole.output_text
    painted = client.responses.parse(model="m", input="hello", text_format=Painting, max_output_tokens=900)
    assert isinstance(painted.output_parsed, Painting)
    tools = [{"type": "function", "strict": True, **FUNCTION["function"]}]
    talk = [{"role": "user", "content": "say paint"}]
    called = scripted.responses.create(model="m", input=talk, tools=tools)
    (call,) = called.output
    assert json.loads(call.arguments) == PAINT
    talk += [*called.output, {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
    assert scripted.responses.create(model="m", input=talk, tools=tools).output_text == PAINTED
    with Raises(openai.BadRequestError):
        client.responses.create(model="m", input=TOO_LONG)


def check_async():
    async def at_once():
        async with openai.AsyncOpenAI(base_url=BUILT_IN + "/v1", api_key="none", max_retries=0) as client:

            async def one(number):
                stream = await client.completions.create(
                    model="m", prompt=f"Client {number}", max_tokens=8, temperature=0, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            together = await asyncio.gather(*(one(number) for number in range(6)))
            assert together == [await one(number) for number in range(6)]

    asyncio.run(at_once())
