"""OpenAI's and Anthropic's own clients for Node."""

import libraries


def check(folder):
    libraries.check(folder, "node_sdks.mjs", ignored={"thread"})  # the runner of tools asks for one to be kept
