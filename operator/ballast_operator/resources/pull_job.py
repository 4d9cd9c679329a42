"""The Job that pulls a model of a hub onto a volume, and the policy that lets its pod out. Pure.

Services that ask for the same share one: its name follows from what is pulled, from where, and onto what. It belongs to
those services while it goes on, so that a pull that nobody wants any more ends. Then it belongs to the claim: it stays,
as what it pulled does, until the claim goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ballast_operator.api.hugging_face import HuggingFaceSource
from ballast_operator.api.inference_service import InferenceService
from ballast_operator.api.spec import HOSTNAME, InferenceServiceSpec
from ballast_operator.child_options import ChildOptions
from ballast_operator.folders import MODEL_DIRECTORY, MODEL_VOLUME, SCRATCH_DIRECTORY
from ballast_operator.names import ADMIN_PORT, ADMIN_PORT_NAME, FIELD_MANAGER, GROUP
from ballast_operator.resources.networkpolicy import dns_egress
from ballast_operator.resources.pod import runtime_image
from ballast_operator.resources.security import USER, container_security, pod_security
from ballast_operator.resources.volumes import pulled_volume
from ballast_operator.spec_hash import short_hash

LABEL_PULL = f"{GROUP}/pull"
"""Of a Job, its pods and its policy: the Job's name."""
ANNOTATION_TEMPLATE = f"{GROUP}/pull-template"
"""A hash of what the Job was made from: one that gets nowhere is made anew where that has changed."""
ANNOTATION_PULLED = f"{GROUP}/pulled"
"""What a pull said when it was done. Its pods go then: they would hold up whoever deletes the claim."""

PULL_CONTAINER = "pull"
REPORT = "/dev/termination-log"
"""What is written there, the kubelet puts into the container's status."""

RESOURCES = {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
"""Never a Guaranteed pod's whole CPUs: those are for engines. Most of the memory is pages of files."""
FOR_EVER = 2**31 - 1
"""Attempts, which come at most six minutes apart: a Secret or a network that is mended later is noticed."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def pull_name(spec: InferenceServiceSpec, source: HuggingFaceSource) -> str:
    """The name of the Job, and of its policy."""
    node = spec.scheduling.node_selector.get(HOSTNAME) if source.host_path is not None else None
    return f"ballast-pull-{short_hash([source.to_api(), node])}"


def build_pull_job(service: InferenceService, source: HuggingFaceSource, options: ChildOptions) -> dict[str, Any]:
    """The Job as the first service that asks for it makes it."""
    spec, name = service.spec, pull_name(service.spec, source)
    template = {
        "metadata": {"labels": _labels(name)},
        "spec": {
            **_scheduling(spec),
            "restartPolicy": "OnFailure",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(fsGroup=USER, fsGroupChangePolicy="OnRootMismatch"),
            **({"serviceAccountName": spec.service_account_name} if spec.service_account_name else {}),
            **(
                {"imagePullSecrets": [ref.to_api() for ref in spec.image_pull_secrets]}
                if spec.image_pull_secrets
                else {}
            ),
            "containers": [_container(spec, source, options)],
            "volumes": [
                {"name": "scratch", "emptyDir": {"sizeLimit": "64Mi"}},
                {"name": MODEL_VOLUME, **pulled_volume(source, read_only=False)},
            ],
        },
    }
    job_spec = {"backoffLimit": FOR_EVER, "completions": 1, "parallelism": 1, "template": template}
    metadata = _metadata(service, name, owner_service(service))
    metadata["annotations"] = {ANNOTATION_TEMPLATE: short_hash(job_spec), f"{GROUP}/model": source.name}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job_spec}


def build_pull_policy(
    service: InferenceService, source: HuggingFaceSource, options: ChildOptions, claim: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The NetworkPolicy of the pulling pod: out to names and to the hub, in for the operator, which reads the progress.

    The hub may send its pods on to other hosts, so hosts are not named; ports are.
    """
    name = pull_name(service.spec, source)
    ports = sorted(
        {443, _port(source.endpoint), *(_port(url) for url in _proxies(service.spec).values() if "://" in url)}
    )
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": options.operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": FIELD_MANAGER}},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(service, name, owner_claim(claim)),
        "spec": {
            "podSelector": {"matchLabels": {LABEL_PULL: name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [operator], "ports": [{"protocol": "TCP", "port": ADMIN_PORT_NAME}]}],
            "egress": [
                dns_egress(),
                {"ports": [{"protocol": "TCP", "port": port} for port in ports]},
            ],
        },
    }


def owner_service(service: InferenceService) -> dict[str, str]:
    """The reference to one of several owners, of which none controls the object."""
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


def _container(spec: InferenceServiceSpec, source: HuggingFaceSource, options: ChildOptions) -> dict[str, Any]:
    return {
        "name": PULL_CONTAINER,
        "image": runtime_image(spec, options),
        "imagePullPolicy": spec.image_pull_policy,
        "command": ["ballast"],
        "args": ["pull", source.name, "--skip_plan", "--report", REPORT, "--progress_port", str(ADMIN_PORT)],
        "env": [
            *({"name": name, "value": value} for name, value in sorted(_proxies(spec).items())),
            {"name": "HOME", "value": SCRATCH_DIRECTORY},
            {"name": "HF_ENDPOINT", "value": source.endpoint},
            {"name": "HF_HUB_CACHE", "value": MODEL_DIRECTORY},
            *(_token(source)),
        ],
        "ports": [{"name": ADMIN_PORT_NAME, "containerPort": ADMIN_PORT, "protocol": "TCP"}],
        "resources": RESOURCES,
        "securityContext": container_security(),
        "terminationMessagePath": REPORT,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "scratch", "mountPath": SCRATCH_DIRECTORY},
            {"name": MODEL_VOLUME, "mountPath": MODEL_DIRECTORY},
        ],
    }


def _token(source: HuggingFaceSource) -> list[dict[str, Any]]:
    if source.token_secret_ref is None:
        return []
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": source.token_secret_ref.to_api()}}]


def _proxies(spec: InferenceServiceSpec) -> dict[str, str]:
    """The engine's variables that name proxies: the way out is the same."""
    return {found.name: found.value for found in spec.env if found.name.upper() in PROXIES and found.value}


def _port(url: str) -> int:
    try:
        parts = urlsplit(url)
        return parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        return 443


def _scheduling(spec: InferenceServiceSpec) -> dict[str, Any]:
    """Where engines may run, so that a volume that is made for the first pod is made where the others can reach it."""
    asked = spec.scheduling
    fields = {
        "nodeSelector": asked.node_selector or None,
        "tolerations": [toleration.to_api() for toleration in asked.tolerations] or None,
        "affinity": asked.affinity,
        "schedulerName": asked.scheduler_name,
    }
    return {name: value for name, value in fields.items() if value is not None}
