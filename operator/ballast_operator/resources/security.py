"""Security contexts under Kubernetes' restricted pod security standard."""

from __future__ import annotations

from typing import Any

USER = 10001
"""User and group of the processes, as in the images."""


def pod_security(**more: Any) -> dict[str, Any]:
    """The pod's part: no root, and the container runtime's default filter of system calls. `more`: further fields."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        **more,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """The container's part: no privileges, and a root file system that is read-only."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
