"""Finds the differences of a live object from the desired one, and the fields to remove first. Pure.

The operator owns the content of its children exactly: an added key of a selector or an added rule of a policy is drift,
like a changed one. Others may add labels, annotations and owners, and the API server may add defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_operator.names import ANNOTATION_APPLIED_HASH
from ballast_operator.spec_hash import short_hash

Path = tuple[str, ...]

SHARED_MAPS: frozenset[Path] = frozenset({("metadata",), ("metadata", "labels"), ("metadata", "annotations")})
"""Maps that may contain keys of other owners."""

FILLED_IN: Mapping[tuple[str, Path], frozenset[str]] = {
    ("Service", ("spec",)): frozenset(
        {
            "allocateLoadBalancerNodePorts",
            "clusterIP",
            "clusterIPs",
            "externalTrafficPolicy",
            "healthCheckNodePort",
            "ipFamilies",
            "ipFamilyPolicy",
        }
    ),
    ("Service", ("spec", "ports")): frozenset({"nodePort"}),
    ("PodMonitor", ("spec", "podMetricsEndpoints", "relabelings")): frozenset({"action"}),
}
"""Keys that the API server fills in, by kind and path of the map."""

SHARED_LISTS: Mapping[Path, str] = {("metadata", "ownerReferences"): "uid"}
"""Lists that may contain items of other owners, each with the key of its items."""

KEYED_LISTS: frozenset[tuple[str, Path]] = frozenset({("Service", ("spec", "ports"))})
"""Our lists that server-side apply merges item by item: a foreign item stays in them, or conflicts with ours."""


def stamped(desired: Mapping[str, Any]) -> dict[str, Any]:
    """The object with a hash of its content as an annotation, so that a removed field is noticed."""
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), ANNOTATION_APPLIED_HASH: short_hash(desired)}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def has_drifted(desired: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Whether a desired field is missing or has another value, or the content has an undesired field."""
    return bool(_surplus(desired, live)) or not all(
        key in live and _matches_desired(str(desired["kind"]), value, live[key], (key,))
        for key, value in desired.items()
    )


def removal_patch(desired: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON merge patch that removes what server-side apply would leave; None if there is nothing to remove.

    Apply removes no foreign key, and merges some lists item by item: these are replaced as a whole.
    """
    kind = str(desired["kind"])
    patch: dict[str, Any] = dict.fromkeys(_surplus(desired, live))
    for key in desired.keys() & live.keys():
        patch |= _removals(kind, desired[key], live[key], (key,))
    return patch or None


def _surplus(desired: Mapping[str, Any], live: Mapping[str, Any]) -> set[str]:
    """The undesired top-level fields of the object, such as `binaryData`. The status does not count."""
    return {key for key in live.keys() - desired.keys() - {"status"} if live[key]}


def _removals(kind: str, want: Any, have: Any, path: Path) -> dict[str, Any]:
    """The patch for the field at `path`, under its name; empty if apply alone is sufficient."""
    name = path[-1]
    if isinstance(want, list):
        replaced = (kind, path) in KEYED_LISTS and not _matches_desired(kind, want, have, path)
        return {name: want} if replaced else {}
    if not isinstance(want, Mapping) or not isinstance(have, Mapping):
        return {}
    inside: dict[str, Any] = dict.fromkeys(_added(kind, want, have, path))
    for key in want.keys() & have.keys():
        inside |= _removals(kind, want[key], have[key], (*path, key))
    return {name: inside} if inside else {}


def _added(kind: str, want: Mapping[str, Any], have: Mapping[str, Any], path: Path) -> set[str]:
    """The keys of our map that neither we nor the API server added."""
    if path in SHARED_MAPS:
        return set()
    return set(have) - set(want) - FILLED_IN.get((kind, path), frozenset())


def _matches_desired(kind: str, want: Any, have: Any, path: Path) -> bool:
    if isinstance(want, Mapping):
        return (
            isinstance(have, Mapping)
            and not _added(kind, want, have, path)
            and all(
                key in have and _matches_desired(kind, value, have[key], (*path, key)) for key, value in want.items()
            )
        )
    if isinstance(want, list):
        return isinstance(have, list) and _list_is_as_wanted(kind, want, have, path)
    return bool(want == have)


def _list_is_as_wanted(kind: str, want: list[Any], have: list[Any], path: Path) -> bool:
    key = SHARED_LISTS.get(path)
    if key is None:
        pairs = zip(want, have, strict=False)
        return len(want) == len(have) and all(_matches_desired(kind, a, b, path) for a, b in pairs)
    found = {item.get(key): item for item in have}
    return all(item[key] in found and _matches_desired(kind, item, found[item[key]], path) for item in want)
