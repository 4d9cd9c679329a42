"""The Job that downloads a model to a volume, and the network policy of its pod. Pure.

Services with the same source and volume share one Job: its name is derived from both. The services own it while it
runs, so that a download that no service needs any more ends. Afterwards the claim owns it: the Job stays, like the
files, until the claim is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.api.sources.pulled_model import PulledSource
from ballast_operator.api.spec import HOSTNAME, InferenceServiceSpec
from ballast_operator.child_options import ChildOptions
from ballast_operator.folders import MODEL_DIRECTORY
from ballast_operator.names import GROUP
from ballast_operator.resources.pod import runtime_image
from ballast_operator.resources.pulling.job_pod import ANNOTATION_TEMPLATE, LABEL_PULL, hub_container, hub_job_spec
from ballast_operator.resources.pulling.policy import pull_policy
from ballast_operator.resources.pulling.source import proxies_of, pull_arguments, pull_env, registry_login
from ballast_operator.resources.volumes import pulled_volume
from ballast_operator.spec_hash import short_hash

ANNOTATION_PULLED = f"{GROUP}/pulled"
"""The final report of a pull. Its pods are deleted then, because they would block the deletion of the claim."""


def pull_name(spec: InferenceServiceSpec, source: PulledSource) -> str:
    """The name of the Job, and of its policy."""
    node = spec.scheduling.node_selector.get(HOSTNAME) if source.host_path is not None else None
    return f"ballast-pull-{short_hash([source.to_api(), node])}"


def build_pull_job(service: InferenceService, source: PulledSource, options: ChildOptions) -> dict[str, Any]:
    """The Job as the first service that needs it creates it."""
    spec, name = service.spec, pull_name(service.spec, source)
    job_spec = hub_job_spec(
        _labels(name),
        _scheduling(spec),
        hub_container(
            runtime_image(spec, options),
            spec.image_pull_policy,
            pull_arguments(source),
            pull_env(source, MODEL_DIRECTORY, proxies_of(spec.env)),
            with_login=registry_login(source) is not None,
        ),
        pulled_volume(source, read_only=False),
        registry_login(source),
        image_pull_secrets=[ref.to_api() for ref in spec.image_pull_secrets],
        service_account=spec.service_account_name,
    )
    metadata = _metadata(service, name, owner_service(service))
    metadata["annotations"] = {ANNOTATION_TEMPLATE: short_hash(job_spec), f"{GROUP}/model": source.name}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job_spec}


def build_pull_policy(
    service: InferenceService, source: PulledSource, options: ChildOptions, claim: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The NetworkPolicy of the downloading pod."""
    name = pull_name(service.spec, source)
    metadata = _metadata(service, name, owner_claim(claim))
    return pull_policy(metadata, {LABEL_PULL: name}, [source], proxies_of(service.spec.env), options)


def owner_service(service: InferenceService) -> dict[str, str]:
    """The reference to one of several owners, none of which is the controller."""
    owner = service.owner_reference()
    return {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}


def owner_claim(claim: Mapping[str, Any] | None) -> dict[str, str] | None:
    """The reference to the claim; None for a node's folder."""
    if claim is None:
        return None
    owned = claim["metadata"]
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": owned["name"], "uid": owned["uid"]}


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "ballast", "app.kubernetes.io/component": "pull", LABEL_PULL: name}


def _metadata(service: InferenceService, name: str, owner: Mapping[str, str] | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": service.ref.namespace, "labels": _labels(name)}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return metadata


def _scheduling(spec: InferenceServiceSpec) -> dict[str, Any]:
    """The nodes where engines may run, so that a volume created for the first pod is reachable for the others."""
    scheduling = spec.scheduling
    fields = {
        "nodeSelector": scheduling.node_selector or None,
        "tolerations": [toleration.to_api() for toleration in scheduling.tolerations] or None,
        "affinity": scheduling.affinity,
        "schedulerName": scheduling.scheduler_name,
    }
    return {name: value for name, value in fields.items() if value is not None}
