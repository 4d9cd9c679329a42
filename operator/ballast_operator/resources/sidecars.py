"""The sidecars of a spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ballast_operator.api.pod.container import Sidecar
from ballast_operator.resources.security import container_security


def as_containers(sidecars: Sequence[Sidecar]) -> list[dict[str, Any]]:
    """Init containers that always restart: they start before the engine and end after it has drained.

    Requests equal limits, so that the pod stays Guaranteed; each has the same privileges as the engine, which are none.
    """
    return [_as_container(sidecar) for sidecar in sidecars]


def _as_container(sidecar: Sidecar) -> dict[str, Any]:
    resources = {"cpu": sidecar.cpu, "memory": sidecar.memory}
    written = sidecar.model_dump(by_alias=True, exclude_none=True, mode="json", exclude={"cpu", "memory"})
    return {
        **{name: value for name, value in written.items() if value != []},
        "restartPolicy": "Always",
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
