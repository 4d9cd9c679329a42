"""langchain-openai against a running server: check_langchain.py URL"""

import sys
from importlib.metadata import version

import openai
from check_openai import CHOICE, SCHEMA, TOOL
from langchain_openai import ChatOpenAI

MODEL = {"base_url": sys.argv[1] + "/v1", "api_key": "none", "model": "m", "max_retries": 0, "seed": 3}

if __name__ == "__main__":
    greedy = ChatOpenAI(**MODEL, temperature=0, max_tokens=16)
    whole = greedy.invoke("hello")
    assert whole.usage_metadata["output_tokens"] == 16
    assert "".join(chunk.content for chunk in greedy.stream("hello")) == whole.content
    free = ChatOpenAI(**MODEL, temperature=1, max_tokens=900)
    (call,) = free.bind_tools([TOOL], tool_choice=CHOICE).invoke("hello").tool_calls
    assert call["name"] == "paint"
    assert call["args"]["colour"] in ("red", "green")
    titled = {"title": "painting", "description": "a painting", **SCHEMA}
    painted = free.with_structured_output(titled, method="json_schema").invoke("hello")
    assert painted["colour"] in ("red", "green")
    try:
        ChatOpenAI(**MODEL, temperature=9).invoke("hello")
    except openai.BadRequestError:
        pass
    else:
        raise AssertionError("a temperature of 9")
    print(f"langchain-openai {version('langchain-openai')}: chat, stream, tools, structured output, errors")
