"""OpenAI's and Anthropic's own clients for Node."""

import libraries

APIS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
TRIED = "streams, runners of tools, structured output, thinking, errors"


def check(folder):
    libraries.check(folder, "node_sdks.mjs", ignored={"thread"})  # the tool runner sends it to keep a thread
