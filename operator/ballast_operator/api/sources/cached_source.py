"""A model of a ModelCache: its name in a service, and what the operator knows about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from ballast_operator.api.base import ApiType, ObjectName
from ballast_operator.api.pod.container import PartName


class CachedSource(ApiType):
    """A model of a ModelCache."""

    name: ObjectName = Field(description="Name of the ModelCache, in the namespace of the InferenceService.")
    model: PartName = Field(description="Name of the model in the ModelCache's spec.models.")


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A cached model that is ready to be served."""

    name: str
    """As `ballast serve` takes it."""
    served_name: str
    folder: str
    """Its folder in the cache's storage."""
    volume: Mapping[str, Any]
    """The source of the pod's volume."""
    nodes: tuple[str, ...] | None
    """Nodes that have it; None for a claim, which any node may mount."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables with which an engine finds it in its folder."""
