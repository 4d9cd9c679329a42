"""A conversation of two turns, the second one as a stream."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:10002/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
messages = [{"role": "user", "content": "What is Ballast?"}]
reply = client.chat.completions.create(model="ballast", messages=messages, temperature=0)
print(reply.choices[0].message.content)

messages += [
    {"role": "assistant", "content": reply.choices[0].message.content},
    {"role": "user", "content": "What is the default port?"},
]
with client.chat.completions.create(model="ballast", messages=messages, temperature=0, stream=True) as stream:
    for event in stream:
        if event.choices and event.choices[0].delta.content:
            print(event.choices[0].delta.content, end="", flush=True)
print()
