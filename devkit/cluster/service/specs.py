"""InferenceServices for tests, and what is waited for in them."""

from __future__ import annotations

from collections.abc import Callable

from devkit.cluster.kube import Kube, Object
from devkit.cluster.nodes.made_up import BEHAVIOUR
from devkit.cluster.waiting import wait_for

CONVERGED_S = 180
"""A limit, not a figure."""


def service(name: str, behaviour: str = "run", **spec: object) -> Object:
    """One CPU, the built-in model, on made-up nodes of this behaviour."""
    return {
        "apiVersion": "serving.ballast.dev/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": {"builtin": {}}},
            "resources": {"cpus": 1, "memory": "1Gi", "gpus": 0},
            "scheduling": {"nodeSelector": {BEHAVIOUR: behaviour}},
            **spec,
        },
    }


def status_of(kube: Kube, namespace: str, name: str) -> Object:
    status: Object = kube.get("inferenceservices", name, namespace).get("status") or {}
    return status


def condition(kube: Kube, namespace: str, name: str, kind: str) -> Object:
    """Empty while there is none."""
    conditions = status_of(kube, namespace, name).get("conditions", [])
    return next((found for found in conditions if found["type"] == kind), {})


def true_conditions(body: Object) -> set[str]:
    """The types of the conditions of an object that are true."""
    return {found["type"] for found in body.get("status", {}).get("conditions", []) if found["status"] == "True"}


def nothing() -> None:
    """To be called where nothing is to be looked at."""


def wait_condition(
    kube: Kube,
    namespace: str,
    name: str,
    kind: str,
    status: str,
    reason: str = "",
    timeout_s: float = CONVERGED_S,
    meanwhile: Callable[[], None] = nothing,
) -> Object:
    """The condition, once it has this status, and this reason if one is given, for the newest spec.

    `meanwhile` is called before each look; what it raises ends the wait.
    """

    def there() -> Object:
        meanwhile()
        body = kube.get("inferenceservices", name, namespace)
        found = condition(kube, namespace, name, kind)
        assert (found.get("status"), reason or found.get("reason")) == (status, found.get("reason")), found
        assert found["observedGeneration"] == body["metadata"]["generation"], "of an older spec"
        return found

    return wait_for(f"{kind}={status} {reason} of {name}", there, timeout_s)


def wait_ready(
    kube: Kube, namespace: str, name: str, timeout_s: float = CONVERGED_S, meanwhile: Callable[[], None] = nothing
) -> Object:
    return wait_condition(kube, namespace, name, "Ready", "True", timeout_s=timeout_s, meanwhile=meanwhile)
