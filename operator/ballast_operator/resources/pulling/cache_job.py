"""The Jobs of a ModelCache, which download models to places and remove them, and the policy of their pods. Pure.

A place is a node, or the claim. The Job that downloaded a model stays: it records that the place has the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ballast_operator.api.model_cache import ModelCache
from ballast_operator.api.model_cache_spec import CachedModel
from ballast_operator.api.sources.cached_source import FoundModel
from ballast_operator.child_options import ChildOptions
from ballast_operator.folders import MODEL_DIRECTORY
from ballast_operator.names import GROUP, LABEL_CACHE
from ballast_operator.resources.node_affinity import on_nodes
from ballast_operator.resources.pulling.job_pod import ANNOTATION_TEMPLATE, LABEL_PULL, hub_container, hub_job_spec
from ballast_operator.resources.pulling.policy import pull_policy
from ballast_operator.resources.pulling.source import proxies_of, pull_arguments, pull_env, registry_login, store_env
from ballast_operator.spec_hash import short_hash

ANNOTATION_PLACE = f"{GROUP}/place"
ANNOTATION_FOLDER = f"{GROUP}/folder"
ANNOTATION_MODEL = f"{GROUP}/model"
ANNOTATION_SIZE = f"{GROUP}/size"

REMOVE_ARGUMENTS = ["models", "--remove_all"]
REMOVAL_SUFFIX = "-remove"
HASH_CHARS = 8


def folder_of(cache: ModelCache, model: CachedModel) -> str:
    """The folder of a model in the storage, which caches of several namespaces may share."""
    return f"{_prefix(cache)}{model.name}-{short_hash(model.source.model.name)[:HASH_CHARS]}"


def is_folder_of(cache: ModelCache, folder: str) -> bool:
    """Whether this cache creates a folder of this name."""
    rest = folder.removeprefix(_prefix(cache))
    return rest != folder and re.fullmatch(rf"[a-z0-9-]+-[0-9a-f]{{{HASH_CHARS}}}", rest) is not None


def _prefix(cache: ModelCache) -> str:
    return f"{cache.ref.namespace}.{cache.ref.name}."


def pull_job_name(cache: ModelCache, place: str, folder: str) -> str:
    """The name of the downloading Job."""
    return f"ballast-cache-{short_hash([cache.uid, place, folder])}"


def removal_job_name(cache: ModelCache, place: str, folder: str) -> str:
    """The name of the removing Job."""
    return f"{pull_job_name(cache, place, folder)}{REMOVAL_SUFFIX}"


def cache_volume(cache: ModelCache, *, read_only: bool) -> dict[str, Any]:
    """The source of the volume with the models."""
    storage = cache.spec.storage
    if storage.host_path is not None:
        return {"hostPath": {"path": storage.host_path.path, "type": "Directory"}}
    assert storage.pvc is not None
    claim = {"claimName": storage.pvc.claim_name, **({"readOnly": True} if read_only else {})}
    return {"persistentVolumeClaim": claim}


def found_model(cache: ModelCache, model: CachedModel, places: tuple[str, ...]) -> FoundModel:
    """The model for a service that uses it in these places."""
    return FoundModel(
        name=model.source.model.name,
        served_name=model.source.model.served_name,
        folder=folder_of(cache, model),
        volume=cache_volume(cache, read_only=True),
        nodes=places if cache.spec.storage.host_path is not None else None,
        env=store_env(model.source.model, MODEL_DIRECTORY),
    )


def build_cache_pull(cache: ModelCache, model: CachedModel, place: str, options: ChildOptions) -> dict[str, Any]:
    """The Job that downloads a model to a place."""
    source, folder = model.source.model, folder_of(cache, model)
    name = pull_job_name(cache, place, folder)
    container = hub_container(
        _image(options),
        "IfNotPresent",
        pull_arguments(source),
        pull_env(source, f"{MODEL_DIRECTORY}/{folder}", proxies_of(cache.spec.proxies)),
        with_login=registry_login(source) is not None,
    )
    tolerations = [toleration.to_api() for toleration in cache.spec.tolerations]
    annotations = _annotations(place, folder, model.name, model.size)
    scheduling = _scheduling(cache, place, tolerations)
    return _job(cache, name, container, scheduling, annotations, registry_login(source))


def build_removal(
    cache: ModelCache, place: str, folder: str, model: str, size: str, options: ChildOptions
) -> dict[str, Any]:
    """The Job that removes a model from a place. It tolerates every taint."""
    directory = f"{MODEL_DIRECTORY}/{folder}"
    env = [
        {"name": "HOME", "value": "/tmp"},  # noqa: S108
        {"name": "HF_HUB_CACHE", "value": directory},
        {"name": "MODELSCOPE_CACHE", "value": directory},
        {"name": "BALLAST_MODEL_CACHE", "value": directory},
    ]
    container = hub_container(_image(options), "IfNotPresent", REMOVE_ARGUMENTS, env)
    scheduling = _scheduling(cache, place, [{"operator": "Exists"}])
    name = removal_job_name(cache, place, folder)
    return _job(cache, name, container, scheduling, _annotations(place, folder, model, size))


def build_cache_policy(cache: ModelCache, options: ChildOptions) -> dict[str, Any]:
    """The NetworkPolicy of the cache's pods."""
    metadata = {
        "name": f"ballast-cache-{cache.ref.name}",
        "namespace": cache.ref.namespace,
        "labels": _labels(cache),
        "ownerReferences": [cache.owner_reference()],
    }
    models = [model.source.model for model in cache.spec.models]
    return pull_policy(metadata, {LABEL_CACHE: cache.ref.name}, models, proxies_of(cache.spec.proxies), options)


def _labels(cache: ModelCache) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "ballast",
        "app.kubernetes.io/component": "cache",
        LABEL_CACHE: cache.ref.name,
    }


def _annotations(place: str, folder: str, model: str, size: str) -> dict[str, str]:
    return {ANNOTATION_PLACE: place, ANNOTATION_FOLDER: folder, ANNOTATION_MODEL: model, ANNOTATION_SIZE: size}


def _job(
    cache: ModelCache,
    name: str,
    container: Mapping[str, Any],
    scheduling: Mapping[str, Any],
    annotations: Mapping[str, str],
    login: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    labels = {**_labels(cache), LABEL_PULL: name}
    secrets = [ref.to_api() for ref in cache.spec.image_pull_secrets]
    volume = cache_volume(cache, read_only=False)
    spec = hub_job_spec(labels, scheduling, container, volume, login, image_pull_secrets=secrets)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": cache.ref.namespace,
            "labels": labels,
            "annotations": {**annotations, ANNOTATION_TEMPLATE: short_hash(spec)},
            "ownerReferences": [cache.owner_reference()],
        },
        "spec": spec,
    }


def _scheduling(cache: ModelCache, place: str, tolerations: list[dict[str, Any]]) -> dict[str, Any]:
    if cache.spec.storage.host_path is not None:
        where: dict[str, Any] = {"affinity": on_nodes(None, [place])}
    else:
        where = {"nodeSelector": cache.spec.node_selector} if cache.spec.node_selector else {}
    return {**where, **({"tolerations": tolerations} if tolerations else {})}


def _image(options: ChildOptions) -> str:
    return options.cpu_runtime_image or options.runtime_image
