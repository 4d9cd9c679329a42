"""The parts shared by pods that pull models of a hub and by pods that remove them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ballast_operator.api.model_cache_spec import Proxy
from ballast_operator.api.pod.container import EnvVar
from ballast_operator.api.sources.hub_model import PROXY_VARIABLES, HubModel
from ballast_operator.api.sources.hugging_face import HuggingFaceModel
from ballast_operator.api.sources.oci_model import OciModel
from ballast_operator.api.sources.pulled_model import PulledModel
from ballast_operator.api.sources.s3_model import S3Model
from ballast_operator.child_options import ChildOptions
from ballast_operator.folders import LOGIN_DIRECTORY, MODEL_DIRECTORY, MODEL_VOLUME, SCRATCH_DIRECTORY
from ballast_operator.names import ADMIN_PORT, ADMIN_PORT_NAME, FIELD_MANAGER, GROUP
from ballast_operator.resources.networkpolicy import dns_egress
from ballast_operator.resources.security import USER, container_security, pod_security

LABEL_PULL = f"{GROUP}/pull"
"""Of a Job, its pods and its policy: the Job's name."""
ANNOTATION_TEMPLATE = f"{GROUP}/pull-template"
"""Hash of the spec that the Job was made from. A failing Job is replaced if the hash changes."""

PULL_CONTAINER = "pull"
LOGIN_VOLUME = "registry"
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
    login: Mapping[str, Any] | None = None,
    *,
    image_pull_secrets: Sequence[Mapping[str, Any]] = (),
    service_account: str | None = None,
) -> dict[str, Any]:
    """The spec of a Job with one pod. `volume`: the source of the volume that holds models. `login`: that of the
    registry's credentials."""
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
                *([{"name": LOGIN_VOLUME, **login}] if login is not None else ()),
            ],
        },
    }
    return {"backoffLimit": FOR_EVER, "completions": 1, "parallelism": 1, "template": template}


def hub_container(
    image: str,
    pull_policy: str,
    arguments: Sequence[str],
    env: Sequence[Mapping[str, Any]],
    *,
    with_login: bool = False,
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
            *([{"name": LOGIN_VOLUME, "mountPath": LOGIN_DIRECTORY, "readOnly": True}] if with_login else ()),
        ],
    }


def registry_login(model: PulledModel) -> dict[str, Any] | None:
    """The source of the volume with the registry's credentials, a Docker configuration; None where there are none."""
    if not isinstance(model, OciModel) or model.pull_secret_ref is None:
        return None
    items = [{"key": ".dockerconfigjson", "path": "config.json"}]
    # A pod without its Secret would wait without a message. An anonymous pull reports that it was refused.
    return {"secret": {"secretName": model.pull_secret_ref.name, "items": items, "optional": True}}


def pull_arguments(model: PulledModel) -> list[str]:
    """The arguments that pull the model."""
    return ["pull", model.name, "--skip_plan", "--report", REPORT, "--progress_port", str(ADMIN_PORT)]


def store_env(model: PulledModel, directory: str) -> dict[str, str]:
    """The variables by which a pull keeps the model in `directory`, and an engine finds it there."""
    if isinstance(model, S3Model):
        endpoint = {} if model.endpoint is None else {"AWS_ENDPOINT_URL_S3": model.endpoint}
        return {"BALLAST_MODEL_CACHE": directory, "AWS_REGION": model.region, **endpoint}
    if isinstance(model, OciModel):
        return {"BALLAST_MODEL_CACHE": directory}
    return {"HF_HUB_CACHE" if isinstance(model, HuggingFaceModel) else "MODELSCOPE_CACHE": directory}


def pull_env(model: PulledModel, directory: str, proxies: Mapping[str, str]) -> list[dict[str, Any]]:
    """The variables by which the pull finds the source, and keeps the model in `directory`."""
    places = store_env(model, directory)
    if isinstance(model, HuggingFaceModel):
        places = {"HF_ENDPOINT": model.endpoint, **places}
    return [
        *({"name": name, "value": value} for name, value in sorted(proxies.items())),
        {"name": "HOME", "value": SCRATCH_DIRECTORY},
        *({"name": name, "value": value} for name, value in places.items()),
        *_credentials(model),
    ]


def _credentials(model: PulledModel) -> Iterator[dict[str, Any]]:
    """Variables that say who asks. A node's own identity in its cloud is not for pods."""
    if isinstance(model, HubModel):
        token = model.token_secret_ref
        if token is not None:
            variable = "HF_TOKEN" if isinstance(model, HuggingFaceModel) else "MODELSCOPE_API_TOKEN"
            yield {"name": variable, "valueFrom": {"secretKeyRef": token.to_api()}}
    elif isinstance(model, S3Model):
        yield {"name": "AWS_EC2_METADATA_DISABLED", "value": "true"}
        if (secret := model.credentials_secret_ref) is not None:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                yield {"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": name}}}
            session = {"name": secret.name, "key": "AWS_SESSION_TOKEN", "optional": True}
            yield {"name": "AWS_SESSION_TOKEN", "valueFrom": {"secretKeyRef": session}}
    elif model.pull_secret_ref is not None:
        yield {"name": "DOCKER_CONFIG", "value": LOGIN_DIRECTORY}


def proxies_of(env: Iterable[EnvVar | Proxy]) -> dict[str, str]:
    """The variables that name proxies."""
    return {found.name: found.value for found in env if found.name.upper() in PROXY_VARIABLES and found.value}


def pull_policy(
    metadata: Mapping[str, Any],
    pods: Mapping[str, str],
    models: Iterable[PulledModel],
    proxies: Mapping[str, str],
    options: ChildOptions,
) -> dict[str, Any]:
    """The NetworkPolicy of pods that pull: out to names and to sources of models, in for the operator, which reads the
    progress.

    A source may send its pods on to other hosts, so hosts are not named; ports are.
    """
    endpoints = {url for model in models if (url := _address(model)) is not None}
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


def _address(model: PulledModel) -> str | None:
    """The URL that the model's source is asked at, where that is not the port of HTTPS."""
    if isinstance(model, HuggingFaceModel | S3Model):
        return model.endpoint
    return f"https://{model.registry}" if isinstance(model, OciModel) else None


def _port(url: str) -> int:
    try:
        parts = urlsplit(url)
        return parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        return 443
