"""The Vercel AI SDK with its four providers."""

import libraries

APIS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
TRIED = (
    "text and streams, tools in several steps, forced tools, structured output, reasoning, errors, cancelled streams"
)


def check(folder):
    libraries.check(folder, "ai_sdk.mjs")
