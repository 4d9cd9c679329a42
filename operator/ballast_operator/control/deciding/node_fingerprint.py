"""A hash of what decides whether a pod can run on a node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_operator.spec_hash import short_hash


def fingerprint(node: Mapping[str, Any]) -> str:
    """A hash of the node's identity, labels, taints, resources and readiness. Heartbeats do not change it."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = [item["status"] for item in status.get("conditions") or [] if item["type"] == "Ready"]
    return short_hash(
        {
            "uid": node["metadata"]["uid"],
            "labels": node["metadata"].get("labels"),
            "unschedulable": spec.get("unschedulable", False),
            "taints": spec.get("taints"),
            "allocatable": status.get("allocatable"),
            "boot": (status.get("nodeInfo") or {}).get("bootID"),
            "ready": ready,
        }
    )
