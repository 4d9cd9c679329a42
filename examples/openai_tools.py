"""A tool that the model calls. The server holds the call to the tool's schema."""

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:10002/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
weather = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
reply = client.chat.completions.create(
    model="ballast",
    messages=[{"role": "user", "content": "What is the weather in Paris?"}],
    tools=[weather],
    tool_choice="required",
    temperature=0,
)
for call in reply.choices[0].message.tool_calls:
    print(call.function.name, json.loads(call.function.arguments))
