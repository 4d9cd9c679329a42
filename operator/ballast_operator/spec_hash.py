"""The hash of a spec, which shows whether a pod matches its spec."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic.alias_generators import to_camel

from ballast_operator.api.spec import InferenceServiceSpec
from ballast_operator.quantity import canonical_bytes

NOT_IN_PODS: Any = {
    "replicas": True,
    "rollout": True,
    "numa": {"enforcement": True},
    "endpoint": {"network_policy": True, "service": True, "inference_pool": True, "route": True},
    "model": {
        "source": {
            "hugging_face": {"endpoint": True, "token_secret_ref": True},
            "model_scope": {"token_secret_ref": True},
            "s3": {"credentials_secret_ref": True},
            "oci": {"pull_secret_ref": True},
        }
    },
}
"""Fields that pods do not depend on."""

WITHOUT_RESTART: Any = {
    **NOT_IN_PODS,
    "image_pull_policy": True,
    "image_pull_secrets": True,
    "engine": {"drain_timeout_seconds": True, "load_timeout_seconds": True},
    "scheduling": {"tolerations": True},
    "pod_metadata": True,
    "probes": True,
}
"""Fields whose changes replace no running engine: a running pod is patched, or the next pod has them."""

RELEASED_DEFAULTS = {"maxNewTokens": 1024, "cacheLens": 32768}
"""Fields of the engine that have no default now, but had one that the API server wrote into every service."""


def spec_hash(spec: InferenceServiceSpec) -> str:
    """A hash that changes exactly when a change of the spec needs new pods.

    It covers the fields that differ from the defaults they were released with, not the pod that is built from them: so
    it stays the same for running pods when a newer operator builds pods in another way or knows more fields.
    """
    requested = _requested(spec, WITHOUT_RESTART)
    requested["resources"]["memory"] = canonical_bytes(spec.resources.memory)
    return _hash_of(requested)


def settings_hash(spec: InferenceServiceSpec) -> str:
    """A hash of everything that a pod is made from: a pod whose engine does not run is replaced for any of it.

    Operators up to 0.1 wrote it as the spec hash.
    """
    return _hash_of(_requested(spec, NOT_IN_PODS))


def restarts(path: str) -> bool:
    """Whether a change of this field, such as `engine.cacheLens`, replaces pods that run."""
    tree = WITHOUT_RESTART
    for name in path.replace("[]", "").split("."):
        tree = {to_camel(key): inside for key, inside in tree.items()}.get(name)
        if tree is None or tree is True:
            return tree is None
    return True


def short_hash(value: Any) -> str:
    """The hash of a JSON value, as 16 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _requested(spec: InferenceServiceSpec, left_out: Any) -> dict[str, Any]:
    return spec.model_dump(by_alias=True, exclude_defaults=True, exclude=left_out, mode="json")


def _hash_of(requested: dict[str, Any]) -> str:
    engine = requested.setdefault("engine", {})
    for name, released in RELEASED_DEFAULTS.items():
        if engine.setdefault(name, None) == released:
            del engine[name]
    return short_hash({name: value for name, value in requested.items() if value != {}})
