"""LangChain: a stream, and a tool that the model calls and whose result it puts into words."""

import json
import os

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:10002/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    model="ballast",
    temperature=0,
)

for piece in model.stream("What is Ballast?"):
    print(piece.content, end="", flush=True)
print()


@tool
def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return json.dumps({"temperature": 21, "sky": "sunny"})


with_tools = model.bind_tools([get_weather])
messages = [HumanMessage("What is the weather in Paris?")]
called = with_tools.invoke(messages)
messages.append(called)
for call in called.tool_calls:
    messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
    print(call["name"], call["args"])
print(with_tools.invoke(messages).content)
