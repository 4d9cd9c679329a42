"""Checks whether a node could run a pod, by the scheduler's requirements that do not depend on other pods, and detects
changes of a node that may change the answer. Pure.

Free resources are not compared: the pod that will be replaced may use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ballast_operator.names import labels_of
from ballast_operator.pod_requests import pod_requests
from ballast_operator.quantity import parse_count
from ballast_operator.spec_hash import short_hash

HARD_EFFECTS = ("NoSchedule", "NoExecute")
PASSING_TAINTS = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.cloudprovider.kubernetes.io/uninitialized",
)
"""Taints for a node's current state. They exclude a pod like others; the message says that they may be temporary."""


def why_no_node(pod: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str | None:
    """The reasons why none of these nodes could run the pod, counted; None if one could."""
    found: Counter[str] = Counter()
    for node in nodes:
        reason = next(_mismatches(pod["spec"], node), None)
        if reason is None:
            return None
        found[reason] += 1
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(found.items()))
    return f"none of {len(nodes)} nodes could run the pod: {counts}" if counts else "the cluster has no nodes"


def fingerprint(node: Mapping[str, Any]) -> str:
    """A hash of what decides whether a pod can run on the node: its identity, labels, taints, resources and readiness.
    Heartbeats do not change it."""
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


def _mismatches(spec: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[str]:
    """The reasons why the node cannot run the pod. Messages do not name the node, so that they can be counted."""
    labels = labels_of(node)
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            yield f"without the label {key}={value}"
    if not _affinity_matches(spec, node):
        yield "excluded by the required node affinity"
    for taint in (node.get("spec") or {}).get("taints") or []:
        if taint.get("effect") in HARD_EFFECTS and not any(
            tolerates(toleration, taint) for toleration in spec.get("tolerations") or []
        ):
            passing = ", which may be temporary" if taint["key"] in PASSING_TAINTS else ""
            yield f"with the taint {_taint_text(taint)}, which is not tolerated{passing}"
    if (node.get("spec") or {}).get("unschedulable") and not any(
        tolerates(toleration, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
        for toleration in spec.get("tolerations") or []
    ):
        yield "cordoned"
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    for name, requested in pod_requests(spec).items():
        available = parse_count(str(allocatable.get(name, "0")))
        if available < requested:
            of_devices = f", {available:f} of {requested:f}" if "/" in name else ""
            yield f"with less {name} than the pod requests{of_devices}"


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a pod with this toleration may run in spite of the taint."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    exists = bool(toleration.get("operator") == "Exists")
    if not toleration.get("key"):
        return exists
    if toleration["key"] != taint.get("key"):
        return False
    return exists or str(toleration.get("value") or "") == str(taint.get("value") or "")


def _taint_text(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _affinity_matches(spec: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity")) or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_term_matches(term, node) for term in required.get("nodeSelectorTerms") or [])


def _term_matches(term: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether the node fulfils every expression. A term without any matches no node."""
    labels = term.get("matchExpressions") or []
    fields = term.get("matchFields") or []
    names = {"metadata.name": node["metadata"]["name"]}
    return bool(labels or fields) and all(
        _expression_matches(each, values)
        for found, values in ((labels, labels_of(node)), (fields, names))
        for each in found
    )


OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
    "Gt": lambda value, values: _number(value) > _number(values[0]),
    "Lt": lambda value, values: _number(value) < _number(values[0]),
}


def _expression_matches(expression: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    compare = OPERATORS.get(expression.get("operator", ""))
    if compare is None:  # of a newer API: the scheduler decides
        return True
    return compare(values.get(expression["key"]), expression.get("values") or [])


def _number(text: str | None) -> float:
    """The number, or one that every comparison fails for."""
    try:
        return float("nan") if text is None else int(text)
    except ValueError:
        return float("nan")
