"""Anthropic's own client."""

import anthropic
from anthropic import beta_tool
from shared import BUILT_IN, KEY, PAINT, PAINTED, SCHEMA, SCRIPTED, TOO_LONG, Painting, Raises, painting_tool

APIS = ("/v1/messages",)

free = anthropic.Anthropic(base_url=BUILT_IN, api_key="none", max_retries=0)
scripted = anthropic.Anthropic(base_url=SCRIPTED, api_key=KEY, max_retries=0)
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "paint", "description": "paints", "input_schema": SCHEMA}
REQUESTED = {"model": "m", "messages": HELLO, "max_tokens": 16, "extra_body": {"temperature": 0}}


def check_messages():
    reply = free.messages.create(**REQUESTED)
    assert reply.usage.output_tokens == 16, reply
    assert reply.stop_reason == "max_tokens"
    blocks = [{"type": "text", "text": "say painted", "cache_control": {"type": "ephemeral"}}]
    reply = scripted.messages.create(model="m", max_tokens=100, messages=[{"role": "user", "content": blocks}])
    assert (reply.content[0].text, reply.stop_reason) == (PAINTED, "end_turn")


def check_stream():
    whole = free.messages.create(**REQUESTED).content[0].text
    with free.messages.stream(**REQUESTED) as stream:
        assert "".join(stream.text_stream) == whole
        final = stream.get_final_message()
    assert final.usage.output_tokens == 16
    events = [event.type for event in free.messages.create(**REQUESTED, stream=True)]
    assert (events[0], events[-1]) == ("message_start", "message_stop")


def check_tools():
    forced = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "paint"}, "max_tokens": 900}
    reply = free.messages.create(model="m", messages=HELLO, **forced)
    (call,) = [block for block in reply.content if block.type == "tool_use"]
    Painting.model_validate(call.input)
    with free.messages.stream(model="m", messages=HELLO, **forced) as stream:
        (call,) = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    Painting.model_validate(call.input)


def check_tool_runner():
    paint, calls = painting_tool()
    tools = [beta_tool(paint)]
    fields = {"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "say paint"}]}
    final = scripted.beta.messages.tool_runner(**fields, tools=tools).until_done()
    assert (calls, final.content[0].text) == ([PAINT], PAINTED)
    for stream in scripted.beta.messages.tool_runner(**fields, tools=tools, stream=True):
        final = stream.get_final_message()
    assert (calls, final.content[0].text) == ([PAINT, PAINT], PAINTED)


def check_structured_output():
    parsed = free.messages.parse(model="m", messages=HELLO, max_tokens=900, output_format=Painting)
    assert isinstance(parsed.parsed_output, Painting)


def check_count_tokens():
    counted = free.messages.count_tokens(model="m", messages=HELLO, tools=[TOOL]).input_tokens
    reply = free.messages.create(model="m", messages=HELLO, tools=[TOOL], max_tokens=1)
    assert counted == reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0)


def check_errors():
    with Raises(anthropic.BadRequestError) as raised:
        free.messages.create(**REQUESTED | {"extra_body": {"temperature": 9}})
    assert raised.error.body["error"]["type"] == "invalid_request_error"
    assert raised.error.request_id
    with Raises(anthropic.BadRequestError):
        free.messages.create(**REQUESTED | {"messages": [{"role": "user", "content": TOO_LONG}]})
    with Raises(anthropic.AuthenticationError):
        scripted.with_options(api_key="another").messages.create(**REQUESTED)
    with Raises(anthropic.NotFoundError):
        free.models.retrieve("no-such-model")
