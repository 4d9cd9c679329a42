"""Security contexts under Kubernetes' restricted pod security standard."""

from __future__ import annotations

from typing import Any

from ballast_operator.api.pod.security import SecurityContext

USER = 10001
"""User and group of the processes, as in the images."""


def pod_security(**more: Any) -> dict[str, Any]:
    """The pod's part: no root, and the default seccomp profile of the container runtime. `more`: additional fields."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        **more,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def engine_security(context: SecurityContext) -> dict[str, Any]:
    """The same for a service's pods, with the users and groups of its spec, or without any."""
    fixed = pod_security(fsGroupChangePolicy="OnRootMismatch")
    if context.assigned_by_cluster:
        fixed = {name: value for name, value in fixed.items() if name not in ("runAsUser", "runAsGroup")}
    else:
        fixed["fsGroup"] = USER
    given = context.model_dump(by_alias=True, exclude_defaults=True, exclude_none=True, exclude={"assigned_by_cluster"})
    return {**fixed, **given}


def container_security() -> dict[str, Any]:
    """The container's part: no privileges, and a root file system that is read-only."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
