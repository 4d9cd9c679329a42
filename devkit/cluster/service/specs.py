"""InferenceServices for tests, and functions that wait for their conditions."""

from __future__ import annotations

from collections.abc import Callable

from devkit.cluster.kube import Kube, Object
from devkit.cluster.nodes.made_up import BEHAVIOUR
from devkit.cluster.waiting import wait_for

CONVERGED_S = 180
"""A time limit, not a measurement."""


def service(name: str, behaviour: str = "run", **spec: object) -> Object:
    """A service with one CPU and the built-in model, on simulated nodes with this behaviour."""
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
    """The condition; empty if there is none."""
    conditions = status_of(kube, namespace, name).get("conditions", [])
    return next((found for found in conditions if found["type"] == kind), {})


def true_conditions(body: Object) -> set[str]:
    """Types of an object's conditions that are true."""
    return {found["type"] for found in body.get("status", {}).get("conditions", []) if found["status"] == "True"}


def nothing() -> None:
    """Default for `meanwhile`: no check."""


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
    """The condition, once it has this status (and `reason`, if given) for the newest spec.

    `meanwhile` is called before each check; an exception from it ends the wait.
    """

    def there() -> Object:
        meanwhile()
        body = kube.get("inferenceservices", name, namespace)
        found = condition(kube, namespace, name, kind)
        assert (found.get("status"), reason or found.get("reason")) == (status, found.get("reason")), found
        assert found["observedGeneration"] == body["metadata"]["generation"], "the condition is for an older spec"
        return found

    return wait_for(f"{kind}={status} {reason} of {name}", there, timeout_s)


def wait_ready(
    kube: Kube, namespace: str, name: str, timeout_s: float = CONVERGED_S, meanwhile: Callable[[], None] = nothing
) -> Object:
    return wait_condition(kube, namespace, name, "Ready", "True", timeout_s=timeout_s, meanwhile=meanwhile)
