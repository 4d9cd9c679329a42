"""LiteLLM against a running server: check_litellm.py URL"""

import os
import sys
from importlib.metadata import version

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from check_openai import ASKED, CHOICE, SCHEMA, TOOL, check_painted

litellm.suppress_debug_info = True

TO = {"api_base": sys.argv[1] + "/v1", "api_key": "none", "num_retries": 0, **ASKED, "model": "openai/m"}


def raises(kind, **fields):
    try:
        litellm.completion(**(TO | fields))
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected for {fields}")


if __name__ == "__main__":
    whole = litellm.completion(**TO, temperature=0, max_tokens=16)
    assert whole.usage.completion_tokens == 16
    stream = litellm.completion(**TO, temperature=0, max_tokens=16, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content
    called = litellm.completion(**TO, tools=[TOOL], tool_choice=CHOICE, max_tokens=900)
    check_painted(called.choices[0].message.tool_calls[0].function.arguments)
    shape = {"type": "json_schema", "json_schema": {"name": "painting", "schema": SCHEMA, "strict": True}}
    check_painted(litellm.completion(**TO, response_format=shape, max_tokens=900).choices[0].message.content)
    raises(litellm.BadRequestError, temperature=9)
    raises(litellm.ContextWindowExceededError, messages=[{"role": "user", "content": "long " * 40_000}])
    print(f"litellm {version('litellm')}: chat, stream, tools, structured output, errors")
