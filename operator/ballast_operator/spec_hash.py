"""The hash of a spec, which tells whether a pod is still the one that the spec asks for."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ballast_operator.api.spec import InferenceServiceSpec

WITHOUT_RESTART: Any = {"replicas": True, "numa": True, "endpoint": {"network_policy": True}}
"""Fields whose changes do not restart pods."""

RELEASED_DEFAULTS = {"maxNewTokens": 1024, "cacheLens": 32768}
"""Fields of the engine that had a default, which the API server has written into every service, and have none now."""


def spec_hash(spec: InferenceServiceSpec) -> str:
    """A hash that changes exactly when a change of the spec needs new pods.

    It covers the fields that differ from the defaults they were released with, not the pod that is built from them: so
    it stays the same for running pods when a newer operator builds pods in another way or knows more fields.
    """
    asked = spec.model_dump(by_alias=True, exclude_defaults=True, exclude=WITHOUT_RESTART, mode="json")
    engine = asked.setdefault("engine", {})
    for name, released in RELEASED_DEFAULTS.items():
        if engine.setdefault(name, None) == released:
            del engine[name]
    return short_hash({name: value for name, value in asked.items() if value != {}})


def short_hash(value: Any) -> str:
    """The hash of a JSON value, as 16 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
