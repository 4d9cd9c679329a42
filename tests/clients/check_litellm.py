"""LiteLLM, as a library."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from shared import BUILT_IN, CHOICE, FUNCTION, KEY, PAINTED, RESULT, SCRIPTED, SHAPE, TOO_LONG, Raises, assert_painted

litellm.suppress_debug_info = True
litellm.telemetry = False

APIS = ("/v1/chat/completions",)
TO = {"api_base": BUILT_IN + "/v1", "api_key": "none", "num_retries": 0, "model": "openai/m"}
TO |= {"messages": [{"role": "user", "content": "hello"}], "seed": 3}
TO_SCRIPTED = TO | {"api_base": SCRIPTED + "/v1", "api_key": KEY}


def check_stream():
    whole = litellm.completion(**TO, temperature=0, max_tokens=16)
    assert whole.usage.completion_tokens == 16
    stream = litellm.completion(**TO, temperature=0, max_tokens=16, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content


def check_tools():
    called = litellm.completion(**TO, tools=[FUNCTION], tool_choice=CHOICE, max_tokens=900)
    assert_painted(called.choices[0].message.tool_calls[0].function.arguments)
    messages = [{"role": "user", "content": "say paint"}]
    called = litellm.completion(**TO_SCRIPTED | {"messages": messages}, tools=[FUNCTION]).choices[0].message
    messages += [called, {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": RESULT}]
    reply = litellm.completion(**TO_SCRIPTED | {"messages": messages}, tools=[FUNCTION])
    assert reply.choices[0].message.content == PAINTED


def check_structured_output():
    assert_painted(litellm.completion(**TO, response_format=SHAPE, max_tokens=900).choices[0].message.content)


def check_errors():
    with Raises(litellm.BadRequestError):
        litellm.completion(**TO, temperature=9)
    with Raises(litellm.ContextWindowExceededError):
        litellm.completion(**TO | {"messages": [{"role": "user", "content": TOO_LONG}]})
    with Raises(litellm.AuthenticationError):
        litellm.completion(**TO_SCRIPTED | {"api_key": "another"})
