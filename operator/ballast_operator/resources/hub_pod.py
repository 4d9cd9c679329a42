"""The parts shared by pods that pull models of a hub and by pods that remove them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ballast_operator.api.container import EnvVar
from ballast_operator.api.hub_model import PROXY_VARIABLES, HubModel
from ballast_operator.api.hugging_face import HuggingFaceModel
from ballast_operator.api.model_cache_spec import Proxy
from ballast_operator.child_options import ChildOptions
from ballast_operator.folders import MODEL_DIRECTORY, MODEL_VOLUME, SCRATCH_DIRECTORY
from ballast_operator.names import ADMIN_PORT, ADMIN_PORT_NAME, FIELD_MANAGER, GROUP
from ballast_operator.resources.networkpolicy import dns_egress
from ballast_operator.resources.security import USER, container_security, pod_security

LABEL_PULL = f"{GROUP}/pull"
"""Of a Job, its pods and its policy: the Job's name."""
ANNOTATION_TEMPLATE = f"{GROUP}/pull-template"
"""Hash of the spec that the Job was made from. A failing Job is replaced if the hash changes."""

PULL_CONTAINER = "pull"
REPORT = "/dev/termination-log"
"""What is written there, the kubelet puts into the container's status."""

RESOURCES = {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
"""Never a Guaranteed pod's whole CPUs: those are for engines. Most of the memory is pages of files."""
FOR_EVER = 2**31 - 1
"""Attempts, which come at most six minutes apart: a Secret or a network that is fixed later is noticed."""


def hub_job_spec(
    labels: Mapping[str, str],
    scheduling: Mapping[str, Any],
    container: Mapping[str, Any],
    volume: Mapping[str, Any],
    *,
    image_pull_secrets: Sequence[Mapping[str, Any]] = (),
    service_account: str | None = None,
) -> dict[str, Any]:
    """The spec of a Job with one pod. `volume`: the source of the volume that holds models."""
    template = {
        "metadata": {"labels": dict(labels)},
        "spec": {
            **scheduling,
            "restartPolicy": "OnFailure",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(fsGroup=USER, fsGroupChangePolicy="OnRootMismatch"),
            **({"serviceAccountName": service_account} if service_account else {}),
            **({"imagePullSecrets": list(image_pull_secrets)} if image_pull_secrets else {}),
            "containers": [container],
            "volumes": [
                {"name": "scratch", "emptyDir": {"sizeLimit": "64Mi"}},
                {"name": MODEL_VOLUME, **volume},
            ],
        },
    }
    return {"backoffLimit": FOR_EVER, "completions": 1, "parallelism": 1, "template": template}


def hub_container(
    image: str, pull_policy: str, arguments: Sequence[str], env: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The container. It runs `ballast` with these arguments, and writes only to the models and to /tmp."""
    return {
        "name": PULL_CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": ["ballast"],
        "args": list(arguments),
        "env": list(env),
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


def pull_arguments(model: HubModel) -> list[str]:
    """The arguments that pull the model."""
    return ["pull", model.name, "--skip_plan", "--report", REPORT, "--progress_port", str(ADMIN_PORT)]


def pull_env(model: HubModel, directory: str, proxies: Mapping[str, str]) -> list[dict[str, Any]]:
    """The variables by which the pull finds the hub, and keeps the model in `directory`."""
    token = model.token_secret_ref
    if isinstance(model, HuggingFaceModel):
        credential, places = "HF_TOKEN", {"HF_ENDPOINT": model.endpoint, "HF_HUB_CACHE": directory}
    else:
        credential, places = "MODELSCOPE_API_TOKEN", {"MODELSCOPE_CACHE": directory}
    return [
        *({"name": name, "value": value} for name, value in sorted(proxies.items())),
        {"name": "HOME", "value": SCRATCH_DIRECTORY},
        *({"name": name, "value": value} for name, value in places.items()),
        *([{"name": credential, "valueFrom": {"secretKeyRef": token.to_api()}}] if token is not None else ()),
    ]


def proxies_of(env: Iterable[EnvVar | Proxy]) -> dict[str, str]:
    """The variables that name proxies."""
    return {found.name: found.value for found in env if found.name.upper() in PROXY_VARIABLES and found.value}


def pull_policy(
    metadata: Mapping[str, Any],
    pods: Mapping[str, str],
    models: Iterable[HubModel],
    proxies: Mapping[str, str],
    options: ChildOptions,
) -> dict[str, Any]:
    """The NetworkPolicy of pods that pull: out to names and to hubs, in for the operator, which reads the progress.

    A hub may send its pods on to other hosts, so hosts are not named; ports are.
    """
    endpoints = {model.endpoint for model in models if isinstance(model, HuggingFaceModel)}
    ways = (*endpoints, *(url for url in proxies.values() if "://" in url))
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": options.operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": FIELD_MANAGER}},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": dict(metadata),
        "spec": {
            "podSelector": {"matchLabels": dict(pods)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [operator], "ports": [{"protocol": "TCP", "port": ADMIN_PORT_NAME}]}],
            "egress": [
                dns_egress(),
                {"ports": [{"protocol": "TCP", "port": port} for port in sorted({443, *map(_port, ways)})]},
            ],
        },
    }


def _port(url: str) -> int:
    try:
        parts = urlsplit(url)
        return parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        return 443
