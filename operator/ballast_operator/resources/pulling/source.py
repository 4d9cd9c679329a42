"""The source of a download, and the folder of the model in downloads and engines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ballast_operator.api.model_cache_spec import Proxy
from ballast_operator.api.pod.container import EnvVar
from ballast_operator.api.sources.hub_model import PROXY_VARIABLES, HubModel
from ballast_operator.api.sources.hugging_face import HuggingFaceModel
from ballast_operator.api.sources.oci_model import OciModel
from ballast_operator.api.sources.pulled_model import PulledModel
from ballast_operator.api.sources.s3_model import S3Model
from ballast_operator.folders import LOGIN_DIRECTORY, SCRATCH_DIRECTORY
from ballast_operator.names import ADMIN_PORT

REPORT = "/dev/termination-log"
"""A file whose content the kubelet copies into the container's status."""


def registry_login(model: PulledModel) -> dict[str, Any] | None:
    """The source of the volume with the registry's credentials, a Docker configuration; None if there are none."""
    if not isinstance(model, OciModel) or model.pull_secret_ref is None:
        return None
    items = [{"key": ".dockerconfigjson", "path": "config.json"}]
    # A pod without its Secret would wait without a message. An anonymous download reports that it was rejected.
    return {"secret": {"secretName": model.pull_secret_ref.name, "items": items, "optional": True}}


def pull_arguments(model: PulledModel) -> list[str]:
    """The arguments that download the model."""
    return ["pull", model.name, "--skip_plan", "--report", REPORT, "--progress_port", str(ADMIN_PORT)]


def store_env(model: PulledModel, directory: str) -> dict[str, str]:
    """The variables with which a download stores the model in `directory`, and an engine finds it there."""
    if isinstance(model, S3Model):
        endpoint = {} if model.endpoint is None else {"AWS_ENDPOINT_URL_S3": model.endpoint}
        return {"BALLAST_MODEL_CACHE": directory, "AWS_REGION": model.region, **endpoint}
    if isinstance(model, OciModel):
        return {"BALLAST_MODEL_CACHE": directory}
    return {"HF_HUB_CACHE" if isinstance(model, HuggingFaceModel) else "MODELSCOPE_CACHE": directory}


def pull_env(model: PulledModel, directory: str, proxies: Mapping[str, str]) -> list[dict[str, Any]]:
    """The variables with which a download finds the source, and stores the model in `directory`."""
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
    """Variables with the credentials. Pods do not use a node's own identity in its cloud."""
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
    """The proxy variables."""
    return {found.name: found.value for found in env if found.name.upper() in PROXY_VARIABLES and found.value}
