"""The real `openai` client, connected to a server that a test started."""

from __future__ import annotations

import openai

from devkit.servers.process import ServerProcess


def openai_client(server: ServerProcess) -> openai.OpenAI:
    """A client without retries; a context manager that closes its connections."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)
