"""Metadata that all children share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.names import service_labels


def child_metadata(service: InferenceService, name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Name, namespace, labels and owner of a child."""
    return {
        "name": name,
        "namespace": service.ref.namespace,
        "labels": {**(labels or {}), **service_labels(service.ref.name, service.uid)},
        "ownerReferences": [service.owner_reference()],
    }
