"""The copies of models, from the Jobs of a ModelCache, and their users. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ballast_operator.api.model_cache import ModelCache
from ballast_operator.control.deciding.pull import Pull, judge
from ballast_operator.folders import MODEL_VOLUME
from ballast_operator.names import ENGINE_CONTAINER, labels_of
from ballast_operator.resources.pulling.cache_job import (
    ANNOTATION_FOLDER,
    ANNOTATION_MODEL,
    ANNOTATION_PLACE,
    ANNOTATION_SIZE,
    folder_of,
    is_folder_of,
    pull_job_name,
    removal_job_name,
)
from ballast_operator.resources.pulling.job_pod import LABEL_PULL

TERMINAL_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Copy:
    """One model in one place, with the Jobs that download and remove it; at least one of the two exists."""

    place: str
    folder: str
    model: str
    size: str
    job: Mapping[str, Any] | None = None
    pods: tuple[Mapping[str, Any], ...] = ()
    removal: Mapping[str, Any] | None = None
    removal_pods: tuple[Mapping[str, Any], ...] = ()

    @property
    def pull(self) -> Pull:
        """The state of its download."""
        return judge(self.job, self.pods)

    @property
    def fails(self) -> bool:
        """Whether its download fails."""
        pull = self.pull
        return self.job is not None and pull.trouble is not None and not pull.running

    @property
    def removed(self) -> Pull:
        """The state of its removal."""
        return judge(self.removal, self.removal_pods)

    @property
    def leaving(self) -> bool:
        """Whether it is being removed, or its download was stopped for that."""
        stopped = self.job is not None and ((self.job.get("spec") or {}).get("suspend") or _ends(self.job))
        return bool(self.removal is not None or stopped)

    @property
    def present(self) -> bool:
        """Whether services may use it."""
        return self.job is not None and self.pull.done and not self.leaving


def copies_of(
    cache: ModelCache, jobs: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str], Copy]:
    """The copies by place and folder. A Job whose name does not match its annotations is not the operator's."""
    found: defaultdict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for job in jobs:
        written = job["metadata"].get("annotations") or {}
        place, folder = written.get(ANNOTATION_PLACE, ""), written.get(ANNOTATION_FOLDER, "")
        if not is_folder_of(cache, folder):
            continue
        name, copy = job["metadata"]["name"], found[place, folder]
        own = tuple(pod for pod in pods if labels_of(pod).get(LABEL_PULL) == name)
        if name == pull_job_name(cache, place, folder):
            copy |= {"job": job, "pods": own}
        elif name == removal_job_name(cache, place, folder):
            copy |= {"removal": job, "removal_pods": own}
        else:
            continue
        copy |= {"model": written.get(ANNOTATION_MODEL, ""), "size": written.get(ANNOTATION_SIZE, "0")}
    return {
        (place, folder): Copy(place, folder, **fields) for (place, folder), fields in found.items() if "model" in fields
    }


def named_folders(cache: ModelCache, services: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The folders that services use, each with the services' names."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for body in services:
        source = ((body.get("spec") or {}).get("model") or {}).get("source") or {}
        reference = source.get("cache") or {}
        model = cache.model(reference.get("model", "")) if reference.get("name") == cache.ref.name else None
        if model is not None and "deletionTimestamp" not in body["metadata"]:
            found[folder_of(cache, model)].append(body["metadata"]["name"])
    return dict(found)


def mounted_folders(cache: ModelCache, pods: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """The folders that engines' pods mount, each with the nodes of these pods."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for pod in pods:
        spec = pod.get("spec") or {}
        if (pod.get("status") or {}).get("phase") in TERMINAL_PHASES or not spec.get("nodeName"):
            continue
        for container in spec.get("containers") or ():
            for mount in container.get("volumeMounts") or ():
                folder = mount.get("subPath", "")
                if container["name"] == ENGINE_CONTAINER and mount["name"] == MODEL_VOLUME and folder:
                    found[folder].add(spec["nodeName"])
    return {folder: nodes for folder, nodes in found.items() if is_folder_of(cache, folder)}


def _ends(job: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in job["metadata"]
