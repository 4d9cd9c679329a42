"""Fixtures shared by server tests."""

from collections.abc import Iterator

import openai
import pytest

from devkit.servers.process import ServerProcess
from devkit.servers.sdk_client import openai_client


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    """The real `openai` client of the module's `server`."""
    with openai_client(server) as client:
        yield client
