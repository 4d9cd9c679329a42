"""OpenAI's own client, of any major version, against a running server: check_openai.py URL"""

import asyncio
import json
import sys

import openai

URL = sys.argv[1] + "/v1"
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}},
    "required": ["colour", "sure"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "paint", "description": "paints", "parameters": SCHEMA}}
CHOICE = {"type": "function", "function": {"name": "paint"}}
ASKED = {"model": "m", "messages": HELLO, "seed": 3}


def check_painted(text):
    painted = json.loads(text)
    assert painted["colour"] in ("red", "green"), painted
    assert painted["sure"] in (True, False), painted


def texts(client):
    assert client.models.list().data[0].object == "model"
    whole = client.chat.completions.create(**ASKED, temperature=0, max_tokens=16)
    assert whole.usage.completion_tokens == 16, whole
    assert whole.choices[0].finish_reason == "length"
    chunks = list(
        client.chat.completions.create(
            **ASKED, temperature=0, max_tokens=16, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        whole.choices[0].message.content
    )
    assert chunks[-1].usage.completion_tokens == 16
    reply = client.completions.create(model="m", prompt="Once", max_tokens=4, temperature=0, logprobs=2, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert len(reply.choices[0].logprobs.tokens) == 4


def tools(client):
    reply = client.chat.completions.create(**ASKED, tools=[TOOL], tool_choice=CHOICE, max_tokens=900)
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == "paint"
    check_painted(call.function.arguments)
    names, arguments = [], ""
    for chunk in client.chat.completions.create(**ASKED, tools=[TOOL], tool_choice=CHOICE, max_tokens=900, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            assert part.index == 0
            names += [part.function.name] if part.function.name else []
            arguments += part.function.arguments or ""
    assert names == ["paint"]
    check_painted(arguments)


def structured(client):
    shape = {"type": "json_schema", "json_schema": {"name": "painting", "schema": SCHEMA, "strict": True}}
    reply = client.chat.completions.create(**ASKED, response_format=shape, max_tokens=900)
    check_painted(reply.choices[0].message.content)


def errors(client):
    for kind, fields in (
        (openai.BadRequestError, {"temperature": 9}),
        (openai.BadRequestError, {"messages": [{"role": "user", "content": "long " * 40_000}]}),
        (openai.BadRequestError, {"extra_body": {"stop_regex": "a+"}}),
    ):
        try:
            client.chat.completions.create(**(ASKED | fields))
        except kind as error:
            assert error.status_code == 400
            assert error.request_id
            assert error.body["message"]
        else:
            raise AssertionError(fields)
    raw = client.chat.completions.with_raw_response.create(**ASKED, max_tokens=1, extra_body={"no_such_field": 1})
    assert raw.headers["x-ballast-ignored"] == "no_such_field"
    try:
        client.models.retrieve("no-such-model")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("a model that is not there")


async def at_once():
    async with openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0) as client:

        async def one(number):
            stream = await client.completions.create(
                model="m", prompt=f"Client {number}", max_tokens=8, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        together = await asyncio.gather(*(one(number) for number in range(6)))
        assert together == [await one(number) for number in range(6)]


if __name__ == "__main__":
    with openai.OpenAI(base_url=URL, api_key="none", max_retries=0) as sync:
        for check in (texts, tools, structured, errors):
            check(sync)
    asyncio.run(at_once())
    print(f"openai {openai.__version__}: chat, text, streams, tools, structured output, errors, async")
