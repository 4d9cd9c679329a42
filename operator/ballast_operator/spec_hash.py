"""What decides whether a pod is still the one that the spec asks for."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ballast_operator.api.spec import InferenceServiceSpec

WITHOUT_RESTART: Any = {"replicas": True, "numa": True, "endpoint": {"network_policy": True}}
"""Fields that a running pod does not depend on."""


def spec_hash(spec: InferenceServiceSpec) -> str:
    """Changes exactly when a change of the spec wants new pods.

    Taken from what differs from the defaults, not from the pod: an operator that builds pods in another way, or knows
    more fields, finds the hash of pods that already run unchanged.
    """
    asked = spec.model_dump(by_alias=True, exclude_defaults=True, exclude=WITHOUT_RESTART, mode="json")
    return short_hash({name: value for name, value in asked.items() if value != {}})


def short_hash(value: Any) -> str:
    """16 hexadecimal digits that stand for a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
