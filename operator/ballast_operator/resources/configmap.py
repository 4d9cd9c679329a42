"""The ConfigMap with the placement rules of the spec."""

from __future__ import annotations

from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.resources.meta import child_metadata

RULES_KEY = "rules.yaml"


def rules_name(service: InferenceService) -> str:
    """The ConfigMap's name."""
    return f"{service.ref.name}-rules"


def build_rules(service: InferenceService, inline: str) -> dict[str, Any]:
    """The ConfigMap, with the rules under one key."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(service, rules_name(service)),
        "data": {RULES_KEY: inline},
    }
