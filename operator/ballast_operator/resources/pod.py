"""The pod of one replica."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ballast_operator.api.engine import FILE_ARGUMENTS, OPERATORS_OPTIONS
from ballast_operator.api.inference_service import InferenceService
from ballast_operator.api.pod.container import Sidecar
from ballast_operator.api.spec import OPTIONS_PREFIX, DeviceClaim, InferenceServiceSpec, PodMetadata
from ballast_operator.child_options import ChildOptions
from ballast_operator.folders import KERNELS_DIRECTORY, MODEL_DIRECTORY
from ballast_operator.names import (
    ADMIN_PORT,
    ADMIN_PORT_NAME,
    ANNOTATION_ATTEMPT,
    ANNOTATION_CLAIMED_GPUS,
    ANNOTATION_FAILURES,
    ANNOTATION_POD_METADATA,
    ANNOTATION_SETTINGS_HASH,
    ANNOTATION_SPEC_HASH,
    API_PORT_NAME,
    ENGINE_CONTAINER,
    ENV_RESTART,
    ENV_SPEC_HASH,
    LABEL_REPLICA,
    pod_selector,
)
from ballast_operator.quantity import parse_bytes
from ballast_operator.resources.command import engine_arguments
from ballast_operator.resources.meta import child_metadata
from ballast_operator.resources.node_affinity import on_nodes
from ballast_operator.resources.pulling.source import store_env
from ballast_operator.resources.security import container_security, engine_security
from ballast_operator.resources.volumes import mounts, volumes
from ballast_operator.spec_hash import settings_hash, short_hash, spec_hash

POD_NAME = re.compile(r"(?P<service>.+)-(?P<replica>0|[1-9]\d*)(?:-r(?P<number>[1-9]\d*))?")

PRE_STOP_S = 5
"""Time for the pod to leave the Service's endpoints before it rejects requests."""
LEAVE_S = 25
"""Maximum time that the runtime takes after its drain, for a step that hangs and the last bytes."""

LOAD_BASE_S = 300
LOAD_BYTES_PER_S = 100 * 2**20
"""Minimum read speed of a model for which the default load timeout is long enough."""
STARTUP_PERIOD_S = 5
STARTUP_TIMEOUT_S = 5

KERNELS_ENV = (
    {"name": "TRITON_CACHE_DIR", "value": f"{KERNELS_DIRECTORY}/triton"},
    {"name": "FLASHINFER_WORKSPACE_BASE", "value": KERNELS_DIRECTORY},
)
"""The folders for compiled GPU kernels on the volume for them; without it, they are below /tmp until the pod ends."""


OFFLINE_ENV = {"name": "HF_HUB_OFFLINE", "value": "1"}
"""An engine does not contact a hub, store or registry for a downloaded model."""

OPTIONS_LEFT_ALONE = tuple(
    {"name": f"{OPTIONS_PREFIX}{name.upper()}", "value": ""} for name in (*OPERATORS_OPTIONS, *FILE_ARGUMENTS)
)
"""Empty variables, which set nothing, in place of variables that an object of envFrom may have: env precedes envFrom.

Files can be set only by extraArgs, where their folder is checked.
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One pod of a replica: the first, or a successor of failed pods."""

    replica: int
    number: int = 0
    failures: int = 0
    """Consecutive failed pods before this one, with the same spec."""


def pod_name(service_name: str, attempt: Attempt) -> str:
    """The pod's name. Each attempt has its own name, so that two operators cannot both start it."""
    stable = f"{service_name}-{attempt.replica}"
    return stable if attempt.number == 0 else f"{stable}-r{attempt.number}"


def parse_pod_name(name: str) -> tuple[str, Attempt] | None:
    """The inverse of pod_name: the service's name and the attempt without its failures; None for other names."""
    found = POD_NAME.fullmatch(name)
    return found and (found["service"], Attempt(int(found["replica"]), int(found["number"] or 0)))


def build_pod(service: InferenceService, options: ChildOptions, attempt: Attempt) -> dict[str, Any]:
    """The pod: of the QoS class Guaranteed, and within the restricted pod security standard."""
    spec, name = service.spec, pod_name(service.ref.name, attempt)
    metadata = child_metadata(service, name, spec.pod_metadata.labels)
    metadata["labels"][LABEL_REPLICA] = str(attempt.replica)
    metadata["annotations"] = {
        **spec.pod_metadata.annotations,
        **({ANNOTATION_POD_METADATA: requested_metadata(spec)} if spec.pod_metadata != PodMetadata() else {}),
        **({ANNOTATION_CLAIMED_GPUS: str(_claimed_gpus(spec))} if spec.resources.claims else {}),
        ANNOTATION_SPEC_HASH: spec_hash(spec),
        ANNOTATION_SETTINGS_HASH: settings_hash(spec),
        ANNOTATION_ATTEMPT: str(attempt.number),
        ANNOTATION_FAILURES: str(attempt.failures),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            **_scheduling(service),
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": PRE_STOP_S + spec.engine.drain_timeout_seconds + LEAVE_S,
            **({"serviceAccountName": spec.service_account_name} if spec.service_account_name else {}),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": engine_security(spec.security_context),
            **(
                {"imagePullSecrets": [ref.to_api() for ref in spec.image_pull_secrets]}
                if spec.image_pull_secrets
                else {}
            ),
            **({"initContainers": _sidecars(spec.sidecars)} if spec.sidecars else {}),
            "containers": [_engine(service, runtime_image(spec, options))],
            "volumes": volumes(service),
            **({"resourceClaims": [_pod_claim(it) for it in spec.resources.claims]} if spec.resources.claims else {}),
        },
    }


def restart_of(service: InferenceService) -> str:
    """A hash of the last requested restart; empty if none was requested."""
    return short_hash(service.restarted_at) if service.restarted_at else ""


def requested_metadata(spec: InferenceServiceSpec) -> str:
    """The keys of the labels and annotations of the spec, as JSON."""
    metadata = spec.pod_metadata
    return json.dumps({"labels": sorted(metadata.labels), "annotations": sorted(metadata.annotations)})


def runtime_image(spec: InferenceServiceSpec, options: ChildOptions) -> str:
    """The spec's image, or the operator's image for pods with or without GPUs."""
    if spec.image is not None:
        return spec.image
    without_gpus = None if spec.resources.gpus else options.cpu_runtime_image
    return without_gpus or options.runtime_image


def load_timeout_s(service: InferenceService) -> int:
    """Seconds that loading may take."""
    timeout_s = service.spec.engine.load_timeout_seconds
    return timeout_s or LOAD_BASE_S + math.ceil(parse_bytes(service.spec.resources.memory) / LOAD_BYTES_PER_S)


def _engine(service: InferenceService, image: str) -> dict[str, Any]:
    resources, probes = requested_resources(service.spec), service.spec.probes
    return {
        "name": ENGINE_CONTAINER,
        "image": image,
        "imagePullPolicy": service.spec.image_pull_policy,
        "command": ["ballast"],
        "args": engine_arguments(service.spec, service.cached),
        **({"envFrom": [source.to_api() for source in service.spec.env_from]} if service.spec.env_from else {}),
        "env": [
            *(variable.to_api() for variable in service.spec.env),
            *(OPTIONS_LEFT_ALONE if service.spec.env_from else ()),
            # Libraries cache what they compile at run time in the home directory, under the user's name.
            {"name": "HOME", "value": "/tmp"},  # noqa: S108
            {"name": "USER", "value": "ballast"},
            {"name": ENV_SPEC_HASH, "value": spec_hash(service.spec)},
            *([{"name": ENV_RESTART, "value": restart_of(service)}] if service.restarted_at else ()),
            *(KERNELS_ENV if service.spec.kernel_cache is not None else ()),
            *_pulled_env(service),
        ],
        "ports": [
            {"name": API_PORT_NAME, "containerPort": service.spec.endpoint.port, "protocol": "TCP"},
            {"name": ADMIN_PORT_NAME, "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        "resources": {
            "requests": resources,
            "limits": dict(resources),
            **({"claims": [_engine_claim(it) for it in claims]} if (claims := service.spec.resources.claims) else {}),
        },
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "startupProbe": {
            **_http_get("/readyz"),
            "periodSeconds": STARTUP_PERIOD_S,
            "timeoutSeconds": STARTUP_TIMEOUT_S,
            "failureThreshold": math.ceil(load_timeout_s(service) / STARTUP_PERIOD_S),
        },
        "readinessProbe": {**_http_get("/readyz"), **probes.readiness.to_api()},
        "livenessProbe": {**_http_get("/livez"), **probes.liveness.to_api()},
        "volumeMounts": mounts(service),
    }


def _pulled_env(service: InferenceService) -> list[dict[str, Any]]:
    """The variables with which the engine finds a downloaded model."""
    pulled = service.spec.model.source.pulled
    if service.cached is not None:
        places = service.cached.env
    elif pulled is not None:
        places = store_env(pulled, MODEL_DIRECTORY)
    else:
        return []
    return [*({"name": name, "value": value} for name, value in places.items()), OFFLINE_ENV]


def _http_get(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": ADMIN_PORT_NAME}}


def _claimed_gpus(spec: InferenceServiceSpec) -> int:
    """The GPUs of all claims. Those of other claims than gpuClaim are not known; each counts as one."""
    resources = spec.resources
    return sum(resources.gpus if claim.name == resources.gpu_claim else 1 for claim in resources.claims)


def _pod_claim(claim: DeviceClaim) -> dict[str, Any]:
    return {name: value for name, value in claim.to_api().items() if name != "request"}


def _engine_claim(claim: DeviceClaim) -> dict[str, Any]:
    return {name: value for name, value in claim.to_api().items() if name in ("name", "request")}


def requested_resources(spec: InferenceServiceSpec) -> dict[str, str]:
    """The requests of one pod: quantities by resource name."""
    resources = spec.resources
    has_gpus = resources.gpus and resources.gpu_claim is None
    return {
        "cpu": str(resources.cpus),
        "memory": resources.memory,
        **({resources.gpu_resource_name: str(resources.gpus)} if has_gpus else {}),
        **({"hugepages-1Gi": f"{resources.hugepages1_gi}Gi"} if resources.hugepages1_gi else {}),
    }


def _sidecars(sidecars: Sequence[Sidecar]) -> list[dict[str, Any]]:
    """Init containers that always restart: they start before the engine and end after it has drained.

    Requests equal limits, so that the pod stays Guaranteed; each has the same privileges as the engine, which are none.
    """
    return [_as_container(sidecar) for sidecar in sidecars]


def _as_container(sidecar: Sidecar) -> dict[str, Any]:
    resources = {"cpu": sidecar.cpu, "memory": sidecar.memory}
    written = sidecar.model_dump(by_alias=True, exclude_none=True, mode="json", exclude={"cpu", "memory"})
    return {
        **{name: value for name, value in written.items() if value != []},
        "restartPolicy": "Always",
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _scheduling(service: InferenceService) -> dict[str, Any]:
    scheduling = service.spec.scheduling
    fields = {
        "nodeSelector": scheduling.node_selector or None,
        "tolerations": [toleration.to_api() for toleration in scheduling.tolerations] or None,
        "affinity": on_nodes(scheduling.affinity, service.cached.nodes if service.cached is not None else None),
        "topologySpreadConstraints": [
            {**constraint.to_api(), "labelSelector": {"matchLabels": pod_selector(service.ref.name)}}
            for constraint in scheduling.topology_spread_constraints
        ]
        or None,
        "priorityClassName": scheduling.priority_class_name,
        "runtimeClassName": scheduling.runtime_class_name,
        "schedulerName": scheduling.scheduler_name,
    }
    return {name: value for name, value in fields.items() if value is not None}
