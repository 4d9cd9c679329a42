"""The lists of allowed values, and the messages of rejections. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AllowLists:
    """Options of the operator. Images, priority classes and node selectors: an empty list allows any."""

    images: tuple[str, ...] = ()
    """Images, or what they begin with, up to a /, : or @. The operator's own are always allowed."""
    host_paths: tuple[str, ...] = ()
    """Absolute directories of nodes, which include everything in them, and single files."""
    priority_classes: tuple[str, ...] = ()
    """Names."""
    node_selectors: tuple[Mapping[str, str], ...] = ()
    """Labels; the node selector of a service must contain every label of one entry."""
    env: tuple[str, ...] = ()
    """Variables that containers may have in addition to harmless ones: names, or beginnings of names with a *."""
    mount_paths: tuple[str, ...] = ()
    """Folders of containers, and what is in them, where volumes may be mounted in addition to harmless ones."""
    sidecar_images: tuple[str, ...] = ()
    """Images of sidecars that may have any command, variables and mounts; written as `images` are."""
    kernel_caches: tuple[str, ...] = ()
    """Claims whose kept kernels may be executed where images are listed."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A value of the spec that no list allows."""

    field: str
    """Path below `spec`."""
    value: str
    option: str
    """The operator's option that allows such values."""
    allowed: tuple[str, ...]

    def __str__(self) -> str:
        rule = f"allows only {', '.join(self.allowed)}" if self.allowed else "allows none"
        return f"spec.{self.field} {self.value or '{}'} is not allowed: {self.option} of the operator {rule}"


def is_of(image: str, prefix: str) -> bool:
    """Whether an image's reference is the prefix, or continues after a whole part of it."""
    if not image.startswith(prefix):
        return False
    rest = image.removeprefix(prefix)
    if not rest or prefix.endswith("/") or rest.startswith("/"):
        return True
    # A tag or a digest has no slash; with one, the prefix is a host and this its port.
    return rest[0] in ":@" and "/" not in rest


def is_below(path: str, roots: Iterable[str]) -> bool:
    """Whether a path is one of the roots or lies below one, however they are written."""
    normal = _normal(path)
    return any(normal == root or normal.startswith(f"{root.rstrip('/')}/") for root in map(_normal, roots))


def _normal(path: str) -> str:
    return posixpath.normpath(re.sub("/+", "/", path))  # normpath keeps two slashes at the beginning
