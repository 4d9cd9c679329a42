"""An agent of OpenAI's Agents SDK: it calls a tool by itself, reads what it returns, and answers."""

import json
import os

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)  # traces would go to OpenAI
client = AsyncOpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:10002/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)


@function_tool
def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    print(f"get_weather({city!r})")
    return json.dumps({"temperature": 21, "sky": "sunny"})


agent = Agent(
    name="weather",
    model=OpenAIChatCompletionsModel(model="ballast", openai_client=client),
    model_settings=ModelSettings(temperature=0),
    tools=[get_weather],
)
print(Runner.run_sync(agent, "What is the weather in Paris?").final_output)
