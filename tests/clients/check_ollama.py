"""Ollama's own client."""

import json

import ollama
from shared import BUILT_IN, KEY, PAINT, PAINTED, SCHEMA, SCRIPTED, TOO_LONG, Painting, Raises, painting_tool

APIS = ("/api/chat", "/api/generate")

free = ollama.Client(host=BUILT_IN)
scripted = ollama.Client(host=SCRIPTED, headers={"Authorization": f"Bearer {KEY}"})
HELLO = [{"role": "user", "content": "hello"}]
COLD = {"temperature": 0, "num_predict": 16}


def text_of(api, part):
    return part.message.content if api == "/api/chat" else part.response


def ask(api, client, prompt, **fields):
    """Send a request to either API."""
    if api == "/api/chat":
        return client.chat(model="m", messages=[{"role": "user", "content": prompt}], **fields)
    return client.generate(model="m", prompt=prompt, **fields)


def check_stream(api):
    whole = ask(api, free, "hello", options=COLD)
    parts = list(ask(api, free, "hello", options=COLD, stream=True))
    assert "".join(text_of(api, part) for part in parts) == text_of(api, whole)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    for last in (whole, parts[-1]):
        assert (last.eval_count, last.done_reason) == (16, "length"), last
        assert last.prompt_eval_count > 0
        assert last.total_duration >= last.eval_duration > 0
    assert text_of(api, ask(api, scripted, "say painted")) == PAINTED


def check_tools():
    paint, calls = painting_tool()
    messages = [{"role": "user", "content": "say paint"}]
    for stream in (False, True):
        reply = scripted.chat(model="m", messages=messages, tools=[paint], stream=stream)
        parts = list(reply) if stream else [reply]
        (call,) = [call for part in parts for call in part.message.tool_calls or ()]
        assert (call.function.name, call.function.arguments) == ("paint", PAINT)
        result = paint(**call.function.arguments)
        text = {"role": "assistant", "tool_calls": [call]}
        results = [text, {"role": "tool", "tool_name": "paint", "content": result}]
        final = scripted.chat(model="m", messages=[*messages, *results], tools=[paint])
        assert final.message.content == PAINTED, final
    assert calls == [PAINT, PAINT]


def check_structured_output(api):
    painted = text_of(api, ask(api, free, "hello", format=SCHEMA, options={"temperature": 0}))
    Painting.model_validate_json(painted)
    loose = text_of(api, ask(api, free, "hello", format="json", options={"temperature": 0, "num_predict": 900}))
    assert isinstance(json.loads(loose), dict) or len(loose) > 100


def check_errors():
    with Raises(ollama.ResponseError) as raised:
        free.chat(model="m", messages=HELLO, options={"temperature": 99})
    assert (raised.error.status_code, "options.temperature" in raised.error.error) == (400, True)
    with Raises(ollama.ResponseError):
        free.chat(model="m", messages=[{"role": "user", "content": TOO_LONG}])
    with Raises(ollama.ResponseError) as raised:
        list(free.generate(model="m", prompt=TOO_LONG, stream=True))
    assert raised.error.status_code == 400
    with Raises(ollama.ResponseError) as raised:
        ollama.Client(host=SCRIPTED, headers={"Authorization": "Bearer another"}).list()
    assert raised.error.status_code == 401
    for refused in (lambda: free.embed(model="m", input="a"), lambda: free.delete("m"), lambda: free.copy("m", "n")):
        with Raises(ollama.ResponseError) as raised:
            refused()
        assert raised.error.status_code == 404


def check_models():
    (listed,) = free.list().models
    assert listed.size > 0
    assert listed.details.format == "gguf"
    shown = free.show(listed.model)
    assert "completion" in shown.capabilities
    architecture = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{architecture}.context_length"] > 0
    (running,) = free.ps().models
    assert running.digest == listed.digest
    assert free.pull(listed.model).status == "success"
    assert [each.status for each in free.pull(listed.model, stream=True)] == ["success"]


def check_load():
    for loaded in (free.generate(model="m", keep_alive="5m"), free.chat(model="m")):
        assert (loaded.done, loaded.done_reason) == (True, "load")


async def check_async():
    client = ollama.AsyncClient(host=BUILT_IN)
    parts = [part async for part in await client.chat(model="m", messages=HELLO, options=COLD, stream=True)]
    assert parts[-1].eval_count == 16
