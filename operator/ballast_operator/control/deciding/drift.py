"""Tells whether a live object still has the fields that we want. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_operator.names import ANNOTATION_APPLIED_HASH
from ballast_operator.spec_hash import short_hash

MERGED_LISTS: Mapping[tuple[str, ...], str] = {("metadata", "ownerReferences"): "uid", ("spec", "ports"): "name"}
"""Lists that the API server merges by this key, so that others may add items of their own."""


def stamped(desired: Mapping[str, Any]) -> dict[str, Any]:
    """The object with a hash of its content as an annotation, by which a field that is no longer wanted is noticed."""
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), ANNOTATION_APPLIED_HASH: short_hash(desired)}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def has_drifted(desired: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Whether a field that we want is missing or has another value. Fields of others do not count."""
    return not _within(desired, live, ())


def _within(want: Any, have: Any, path: tuple[str, ...]) -> bool:
    if isinstance(want, Mapping):
        return isinstance(have, Mapping) and all(
            key in have and _within(value, have[key], (*path, key)) for key, value in want.items()
        )
    if isinstance(want, list):
        return isinstance(have, list) and _list_within(want, have, path)
    return bool(want == have)


def _list_within(want: list[Any], have: list[Any], path: tuple[str, ...]) -> bool:
    key = MERGED_LISTS.get(path)
    if key is None:
        return len(want) == len(have) and all(_within(a, b, path) for a, b in zip(want, have, strict=True))
    found = {item.get(key): item for item in have}
    return all(item[key] in found and _within(item, found[item[key]], path) for item in want)
