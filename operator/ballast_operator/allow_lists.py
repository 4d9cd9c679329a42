"""What services may ask for beyond their own namespace: lists that whoever installs the operator gives. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ballast_operator.api.model_cache_spec import ModelCacheSpec
from ballast_operator.api.spec import InferenceServiceSpec


@dataclass(frozen=True, slots=True)
class AllowLists:
    """Options of the operator. An empty list allows anything, except that of host paths, which allows none."""

    images: tuple[str, ...] = ()
    """Images, or what they begin with, up to a /, : or @. The operator's own are always allowed."""
    host_paths: tuple[str, ...] = ()
    """Absolute directories of nodes, each with all below it, and single files."""
    priority_classes: tuple[str, ...] = ()
    """Names."""
    node_selectors: tuple[Mapping[str, str], ...] = ()
    """Labels; the node selector of a service must hold all those of one entry."""


def why_not_allowed(spec: InferenceServiceSpec, lists: AllowLists) -> str | None:
    """What the spec asks for that no list allows, as sentences; None where it may have everything."""
    return "; ".join(_refusals(spec, lists)) or None


def _refusals(spec: InferenceServiceSpec, lists: AllowLists) -> Iterator[str]:
    scheduling = spec.scheduling
    for field, image in _images(spec):
        if lists.images and not any(_is_of(image, prefix) for prefix in lists.images):
            yield _refusal(field, image, "--allowed-image", lists.images)
    for field, path in _host_paths(spec):
        if not any(_is_below(path, root) for root in lists.host_paths):
            yield _refusal(field, path, "--allowed-host-path", lists.host_paths)
    priority = scheduling.priority_class_name
    if priority is not None and lists.priority_classes and priority not in lists.priority_classes:
        yield _refusal("scheduling.priorityClassName", priority, "--allowed-priority-class", lists.priority_classes)
    yield from _refused_selector("scheduling.nodeSelector", scheduling.node_selector, lists)


def why_cache_not_allowed(spec: ModelCacheSpec, lists: AllowLists) -> str | None:
    """The same for a ModelCache."""
    return "; ".join(_cache_refusals(spec, lists)) or None


def _cache_refusals(spec: ModelCacheSpec, lists: AllowLists) -> Iterator[str]:
    folder = spec.storage.host_path
    if folder is not None and not any(_is_below(folder.path, root) for root in lists.host_paths):
        yield _refusal("storage.hostPath.path", folder.path, "--allowed-host-path", lists.host_paths)
    yield from _refused_selector("nodeSelector", spec.node_selector, lists)


def _refused_selector(field: str, asked: Mapping[str, str], lists: AllowLists) -> Iterator[str]:
    if lists.node_selectors and not any(selector.items() <= asked.items() for selector in lists.node_selectors):
        allowed = map(_selector_text, lists.node_selectors)
        yield _refusal(field, _selector_text(asked), "--allowed-node-selector", allowed)


def _images(spec: InferenceServiceSpec) -> Iterator[tuple[str, str]]:
    """Every image that the spec names, with the field that does."""
    if spec.image is not None:
        yield "image", spec.image
    if spec.model.source.image is not None:
        yield "model.source.image.reference", spec.model.source.image.reference
    for sidecar in spec.sidecars:
        yield f"sidecars[{sidecar.name}].image", sidecar.image


def _host_paths(spec: InferenceServiceSpec) -> Iterator[tuple[str, str]]:
    """Every path of a node that the spec names, with the field that does."""
    if spec.model.source.host_path is not None:
        yield "model.source.hostPath.path", spec.model.source.host_path.path
    if spec.model.source.hugging_face is not None and spec.model.source.hugging_face.host_path is not None:
        yield "model.source.huggingFace.hostPath.path", spec.model.source.hugging_face.host_path.path
    if spec.kernel_cache is not None and spec.kernel_cache.host_path is not None:
        yield "kernelCache.hostPath", spec.kernel_cache.host_path
    for volume in spec.volumes:
        if volume.host_path is not None:
            yield f"volumes[{volume.name}].hostPath.path", volume.host_path.path


def _refusal(field: str, value: str, option: str, allowed: Iterable[str]) -> str:
    listed = ", ".join(allowed)
    rule = f"allows only {listed}" if listed else "allows none"
    return f"spec.{field} {value or '{}'} is not allowed: {option} of the operator {rule}"


def _is_of(image: str, prefix: str) -> bool:
    """Whether an image's reference is the prefix, or goes on behind a whole part of it."""
    if not image.startswith(prefix):
        return False
    rest = image.removeprefix(prefix)
    if not rest or prefix.endswith("/") or rest.startswith("/"):
        return True
    # A tag or a digest has no slash; with one, the prefix is a host and this its port.
    return rest[0] in ":@" and "/" not in rest


def _is_below(path: str, root: str) -> bool:
    """Whether a directory is `root` or below it, however the two are written."""
    inside, outside = _normal(path), _normal(root)
    return inside == outside or inside.startswith(f"{outside.rstrip('/')}/")


def _normal(path: str) -> str:
    return posixpath.normpath(re.sub("/+", "/", path))


def _selector_text(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
