"""Rejects specs that exceed the operator's limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ballast_operator.api.model_cache_spec import ModelCacheSpec
from ballast_operator.api.spec import InferenceServiceSpec
from ballast_operator.limits.allowed import AllowLists, Refusal, is_below, is_of
from ballast_operator.limits.code_sources import code_refusals


def why_not_allowed(spec: InferenceServiceSpec, lists: AllowLists) -> str | None:
    """The values of the spec that no list allows, as sentences; None if everything is allowed."""
    return "; ".join(map(str, _refusals(spec, lists))) or None


def _refusals(spec: InferenceServiceSpec, lists: AllowLists) -> Iterator[Refusal | str]:
    scheduling = spec.scheduling
    for field, image in _images(spec):
        if lists.images and not any(is_of(image, prefix) for prefix in lists.images):
            yield Refusal(field, image, "--allowed-image", lists.images)
    for sidecar in spec.sidecars:
        prefixes = (*lists.images, *lists.sidecar_images)
        if lists.images and not any(is_of(sidecar.image, prefix) for prefix in prefixes):
            yield Refusal(f"sidecars[{sidecar.name}].image", sidecar.image, "--allowed-image", prefixes)
    for field, path in _host_paths(spec):
        if not is_below(path, lists.host_paths):
            yield Refusal(field, path, "--allowed-host-path", lists.host_paths)
    priority = scheduling.priority_class_name
    if priority is not None and lists.priority_classes and priority not in lists.priority_classes:
        yield Refusal("scheduling.priorityClassName", priority, "--allowed-priority-class", lists.priority_classes)
    yield from _refused_selector("scheduling.nodeSelector", scheduling.node_selector, lists)
    yield from code_refusals(spec, lists)


def why_cache_not_allowed(spec: ModelCacheSpec, lists: AllowLists) -> str | None:
    """The same for a ModelCache."""
    return "; ".join(map(str, _cache_refusals(spec, lists))) or None


def _cache_refusals(spec: ModelCacheSpec, lists: AllowLists) -> Iterator[Refusal]:
    folder = spec.storage.host_path
    if folder is not None and not is_below(folder.path, lists.host_paths):
        yield Refusal("storage.hostPath.path", folder.path, "--allowed-host-path", lists.host_paths)
    for model in spec.models:
        artifact = model.source.oci
        if artifact is not None and lists.images and not any(is_of(artifact.reference, it) for it in lists.images):
            where = f"models[{model.name}].source.oci.reference"
            yield Refusal(where, artifact.reference, "--allowed-image", lists.images)
    yield from _refused_selector("nodeSelector", spec.node_selector, lists)


def _refused_selector(field: str, requested: Mapping[str, str], lists: AllowLists) -> Iterator[Refusal]:
    if lists.node_selectors and not any(selector.items() <= requested.items() for selector in lists.node_selectors):
        allowed = tuple(map(_selector_text, lists.node_selectors))
        yield Refusal(field, _selector_text(requested), "--allowed-node-selector", allowed)


def _images(spec: InferenceServiceSpec) -> Iterator[tuple[str, str]]:
    """Every image of the spec except those of sidecars, with its field."""
    if spec.image is not None:
        yield "image", spec.image
    if spec.model.source.image is not None:
        yield "model.source.image.reference", spec.model.source.image.reference
    if spec.model.source.oci is not None:
        yield "model.source.oci.reference", spec.model.source.oci.reference


def _host_paths(spec: InferenceServiceSpec) -> Iterator[tuple[str, str]]:
    """Every path of a node in the spec, with its field."""
    if spec.model.source.host_path is not None:
        yield "model.source.hostPath.path", spec.model.source.host_path.path
    source = spec.model.source
    if source.pulled is not None and source.pulled.host_path is not None:
        yield f"model.source.{source.pulled_field}.hostPath.path", source.pulled.host_path.path
    if spec.kernel_cache is not None and spec.kernel_cache.host_path is not None:
        yield "kernelCache.hostPath", spec.kernel_cache.host_path
    for volume in spec.volumes:
        if volume.host_path is not None:
            yield f"volumes[{volume.name}].hostPath.path", volume.host_path.path


def _selector_text(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
