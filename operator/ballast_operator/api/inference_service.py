"""One InferenceService, read from the API server's JSON or from YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ballast_operator.api.sources.cached_source import FoundModel
from ballast_operator.api.spec import InferenceServiceSpec
from ballast_operator.names import (
    ANNOTATION_RESTARTED_AT,
    API_VERSION,
    KIND,
    MAX_NAME_LENGTH,
    NAME_PATTERN,
    NAME_RULE,
    NAMESPACE_PATTERN,
    Ref,
)

MAX_VALUE = 80
"""Characters of a value in a message."""


class SpecError(Exception):
    """The operator cannot act on the spec. The message names the field and the reason."""


@dataclass(frozen=True, slots=True)
class InferenceService:
    """Identity and spec of one InferenceService."""

    ref: Ref
    uid: str
    generation: int
    spec: InferenceServiceSpec
    restarted_at: str = ""
    """The value of the restart annotation; empty if there is none."""
    cached: FoundModel | None = None
    """The model of model.source.cache; None for other sources, and while its ModelCache does not have it."""

    @classmethod
    def from_api(cls, body: Mapping[str, Any], *, strict: bool = False) -> InferenceService:
        """Read it from JSON or YAML. `strict`: reject invalid names and unknown fields, as an API server does.

        Raises SpecError.
        """
        metadata = body["metadata"]
        if strict:
            _check_names(metadata)
        try:
            spec = InferenceServiceSpec.model_validate(body.get("spec", {}), extra="forbid" if strict else "ignore")
        except ValidationError as error:
            raise SpecError("; ".join(sentence(problem) for problem in error.errors())) from None
        return cls(
            Ref(metadata.get("namespace", "default"), metadata["name"]),
            metadata.get("uid", ""),
            metadata.get("generation", 0),
            spec,
            str((metadata.get("annotations") or {}).get(ANNOTATION_RESTARTED_AT) or ""),
        )

    def owner_reference(self) -> dict[str, Any]:
        """The owner reference of a child, so that the garbage collector removes it with the service."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.ref.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def _check_names(metadata: Mapping[str, Any]) -> None:
    name, namespace = metadata["name"], metadata.get("namespace", "default")
    if not (isinstance(name, str) and len(name) <= MAX_NAME_LENGTH and re.fullmatch(NAME_PATTERN, name)):
        raise SpecError(f"metadata.name {name!r}: {NAME_RULE}")
    if not (isinstance(namespace, str) and re.fullmatch(NAMESPACE_PATTERN, namespace)):
        raise SpecError(f"metadata.namespace {namespace!r} is not a valid name of a namespace")


def sentence(problem: Any) -> str:
    """Pydantic's message, with the field's path in YAML and the value."""
    where = ".".join(("spec", *(str(part) for part in problem["loc"])))
    said, value = str(problem["msg"]), problem["input"]
    if problem["type"] == "extra_forbidden":
        return f"{where}: there is no such field"
    if problem["type"] == "missing":
        return f"{where}: this field is required"
    if problem["type"] == "value_error":  # ours, which name the value
        return f"{where}: {said.removeprefix('Value error, ')}"
    shown = f"{repr(value)[:MAX_VALUE]}: " if isinstance(value, str | int | float) else ""
    return f"{where}: {shown}{said[:1].lower()}{said[1:]}"
