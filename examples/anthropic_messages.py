"""The same chat by Anthropic's Messages API."""

import os

from anthropic import Anthropic

client = Anthropic(
    base_url=os.environ.get("ANTHROPIC_BASE_URL", "http://localhost:10002"),
    api_key=os.environ.get("ANTHROPIC_API_KEY", "none"),
)
message = client.messages.create(
    model="ballast", max_tokens=64, messages=[{"role": "user", "content": "What is Ballast?"}]
)
print(message.content[0].text)
