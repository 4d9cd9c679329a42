"""Model descriptions in Ollama's format, for its lists and /api/show."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

from ballast.model.facts import ModelFacts
from ballast.text.loading import Text
from ballast.wire.ollama.reply import written_time
from ballast.wire.ollama.request import LATEST

API_VERSION = "0.13.0"
"""The version of Ollama whose API is implemented. Clients compare it with the version that they need."""
FOREVER = "2318-01-01T00:00:00Z"
"""The unload time that Ollama reports for a model that stays loaded."""


class Details(BaseModel):
    """The kind of a model."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class Listed(BaseModel):
    """A model of a list."""

    name: str
    model: str
    size: int
    digest: str
    details: Details


class Tag(Listed):
    """An available model."""

    modified_at: str


class Tags(BaseModel):
    """Reply of GET /api/tags."""

    models: list[Tag]


class Running(Listed):
    """A loaded model."""

    expires_at: str
    size_vram: int
    context_length: int


class RunningModels(BaseModel):
    """Reply of GET /api/ps."""

    models: list[Running]


class Shown(BaseModel):
    """Reply of POST /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class ApiVersion(BaseModel):
    """Reply of GET /api/version."""

    version: str


class Pulled(BaseModel):
    """Reply of POST /api/pull."""

    status: str


class OllamaError(BaseModel):
    """Every error on the paths of Ollama's API."""

    error: str


class Generated(BaseModel):
    """A reply, or one line of a stream; only the last one has `done_reason` and the counts and durations."""

    model_config = ConfigDict(extra="allow")

    model: str
    created_at: str
    done: bool
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class Chatted(Generated):
    """Reply of POST /api/chat."""

    message: dict[str, Any]


class Prompted(Generated):
    """Reply of POST /api/generate."""

    response: str


def tagged(name: str) -> str:
    """The name with a tag, which every name in Ollama's lists has."""
    return name if ":" in name else name + LATEST


def tags(names: list[str], facts: ModelFacts, created: float) -> Tags:
    """The list of the names under which the model is served."""
    return Tags(models=[Tag(**_listed(name, facts), modified_at=written_time(created)) for name in names])


def running_models(names: list[str], facts: ModelFacts, *, num_device_bytes: int, context_length: int) -> RunningModels:
    """The same list for the loaded model."""
    return RunningModels(
        models=[
            Running(
                **_listed(name, facts),
                expires_at=FOREVER,
                size_vram=num_device_bytes,
                context_length=context_length,
            )
            for name in names
        ]
    )


def shown(name: str, facts: ModelFacts, text: Text, *, context_length: int, created: float) -> Shown:
    """All details of the model. `context_length`: the server's limit."""
    info = {
        **facts.keys,
        "general.architecture": facts.architecture,
        "general.parameter_count": facts.num_parameters,
        f"{facts.architecture}.context_length": context_length,
    }
    return Shown(
        modelfile=f"FROM {name}\n",
        parameters=f"num_ctx {context_length}",
        template="" if text.template is None else text.template.source,
        details=_details(facts),
        model_info=info,
        capabilities=_capabilities(text),
        modified_at=written_time(created),
    )


def _listed(name: str, facts: ModelFacts) -> dict[str, Any]:
    identity = orjson.dumps([name, facts], option=orjson.OPT_SORT_KEYS)
    return {
        "name": tagged(name),
        "model": tagged(name),
        "size": facts.num_bytes,
        "digest": hashlib.sha256(identity).hexdigest(),
        "details": _details(facts),
    }


def _details(facts: ModelFacts) -> Details:
    return Details(
        parent_model="",
        format="gguf",
        family=facts.architecture,
        families=[facts.architecture],
        parameter_size=facts.parameter_size,
        quantization_level=facts.quantization,
    )


def _capabilities(text: Text) -> list[str]:
    """The capabilities that clients check."""
    template = text.template
    if template is None:
        return ["completion", *(["insert"] if text.fim else [])]
    can = {
        "completion": True,
        "tools": template.renders_tools,
        "thinking": template.has_thinking_switch or (template.release is not None and template.release.thinks),
        "insert": text.fim is not None,
    }
    return [name for name, is_there in can.items() if is_there]
