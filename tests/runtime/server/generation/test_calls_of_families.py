"""A forced call is written in each model family's own form and parsed from it, with a server and a small model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ballast.tiny.presets import PRESETS
from devkit.long import times
from devkit.models.written import write_tiny_model
from devkit.servers.process import ServerProcess
from devkit.servers.sdk_client import openai_client

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "São Paulo"]},
        "days": {"enum": [3, 12]},
        "sure": {"type": "boolean"},
    },
    "required": ["city", "days", "sure"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("forecast", "weather")]

FIRST = {shape.family: arch for arch, shape in reversed(PRESETS.items()) if shape.family not in ("v2", "v3")}
"""The first small model of each family whose template supports calls. V3's uses another template."""
TEMPLATES = {"mistral4": "mistral-small-4"}
"""Templates of small models that do not use their own."""


@pytest.fixture(
    scope="module",
    params=[
        *((arch, TEMPLATES.get(arch)) for arch in FIRST.values()),
        ("qwen3", "qwen3-coder"),
        ("qwen3next", "qwen3-coder-next"),
        ("v3", "deepseek-v3.1"),
    ],
    ids=lambda param: param[1] or param[0],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    arch, template = request.param
    model = write_tiny_model(tmp_path_factory.mktemp(arch), arch=arch)
    options = ["--gguf_path", str(model.gguf), "--cache_lens", "4096", "--max_new_tokens", "400"]
    options += [] if template is None else ["--chat_template", template]
    with ServerProcess(*options, environment={"BALLAST_DEVICE": "cpu"}) as process:
        yield process


def test_a_named_call_has_the_schemas_values_and_their_types(served: ServerProcess) -> None:
    fields: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "How will it be?"}],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "temperature": 1.0,
        "extra_body": {"thinking": {"type": "disabled"}},
    }
    with openai_client(served) as client:
        for seed in range(times(1, 3)):
            (choice,) = client.chat.completions.create(**fields, seed=seed).choices
            (call,) = choice.message.tool_calls or []
            assert call.function.name == "weather"
            arguments = json.loads(call.function.arguments)
            assert set(arguments) == {"city", "days", "sure"}
            assert arguments["city"] in ("Paris", "São Paulo")
            assert arguments["days"] in (3, 12)
            assert arguments["sure"] in (True, False)
            assert not choice.message.content
            deltas = [
                delta
                for chunk in client.chat.completions.create(**fields, seed=seed, stream=True)
                for each in chunk.choices
                for delta in each.delta.tool_calls or []
            ]
            assert "".join(delta.function.arguments or "" for delta in deltas) == call.function.arguments
