"""A reply that fits a JSON schema: the server holds it to the schema token by token."""

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:10002/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
reply = client.chat.completions.create(
    model="ballast",
    messages=[{"role": "user", "content": "My name is Anna and I am 31 years old. Answer in JSON with name and age."}],
    response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}},
    temperature=0,
)
print(json.loads(reply.choices[0].message.content))
