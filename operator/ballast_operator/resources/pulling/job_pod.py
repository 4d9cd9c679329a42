"""The Jobs and containers shared by pulls and removals of models. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast_operator.folders import LOGIN_DIRECTORY, MODEL_DIRECTORY, MODEL_VOLUME, SCRATCH_DIRECTORY
from ballast_operator.names import ADMIN_PORT, ADMIN_PORT_NAME, GROUP
from ballast_operator.resources.pulling.source import REPORT
from ballast_operator.resources.security import USER, container_security, pod_security

LABEL_PULL = f"{GROUP}/pull"
"""Label of a Job, its pods and its policy: the Job's name."""
ANNOTATION_TEMPLATE = f"{GROUP}/pull-template"
"""Hash of the template of the Job. A failing Job is replaced if the hash changes."""

PULL_CONTAINER = "pull"
LOGIN_VOLUME = "registry"
RESOURCES = {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
"""Less than a whole CPU: exclusive CPUs are for engines. Most of the memory is page cache."""
MAX_ATTEMPTS = 2**31 - 1
"""Attempts are at most six minutes apart, so a Secret or a network that is fixed later is noticed."""


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
    return {"backoffLimit": MAX_ATTEMPTS, "completions": 1, "parallelism": 1, "template": template}


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
