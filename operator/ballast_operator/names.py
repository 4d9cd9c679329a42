"""Names that the operator, its children and its users share: kinds, labels, annotations, ports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GROUP = "serving.ballast.dev"
SERVED_VERSIONS = ("v1beta1", "v1alpha1")
"""Versions of the API, all with the same schema; the first is the one for manifests."""
VERSION = "v1alpha1"
"""The version of stored objects, and of the operator's requests and owner references.

The definition of the release before this one serves no other version, and an upgrade may leave it in place for a while.
"""
API_VERSION = f"{GROUP}/{VERSION}"
API_VERSIONS = tuple(f"{GROUP}/{version}" for version in SERVED_VERSIONS)
"""The values of `apiVersion` that manifests may have."""
KIND = "InferenceService"
PLURAL = "inferenceservices"
CACHE_KIND = "ModelCache"
CACHE_PLURAL = "modelcaches"

FIELD_MANAGER = "ballast-operator"

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_SERVICE = f"{GROUP}/service"
LABEL_OWNER_UID = f"{GROUP}/owner-uid"
LABEL_REPLICA = f"{GROUP}/replica"
ANNOTATION_SPEC_HASH = f"{GROUP}/spec-hash"
ANNOTATION_ATTEMPT = f"{GROUP}/attempt"
ANNOTATION_FAILURES = f"{GROUP}/failures"
ANNOTATION_SETTINGS_HASH = f"{GROUP}/settings-hash"
ANNOTATION_POD_METADATA = f"{GROUP}/pod-metadata"
"""The labels and annotations of a pod that came from the spec, so that removed ones are recognised."""
ANNOTATION_CLAIMED_GPUS = f"{GROUP}/claimed-gpus"
"""Annotation of a pod with claims of devices: how many GPUs they count as in quotas."""
ANNOTATION_SERVED = f"{GROUP}/served"
"""Annotation of a pod that was ready once: it still counts as serving during a short readiness failure."""
ANNOTATION_APPLIED_HASH = f"{GROUP}/applied-hash"
ANNOTATION_RESTARTED_AT = f"{GROUP}/restarted-at"
"""Annotation of an InferenceService: another value replaces its pods, one after the other."""

LABEL_CACHE = f"{GROUP}/model-cache"
"""Label of Jobs, their pods and a policy: the name of their ModelCache."""
FINALIZER_CACHE = f"{GROUP}/cached-files"
"""Finalizer of a ModelCache. The operator removes it once the cached files are gone."""

ANNOTATION_PROCESS = f"{GROUP}/process"
"""Annotation of the Lease: the process that holds it."""

LABEL_INSTALL = f"{GROUP}/install"
"""Label of the Lease of every install, with which installs find each other."""
ANNOTATION_NAMESPACES = f"{GROUP}/namespaces"
"""Annotation of the Lease: the namespaces that its install watches, separated by commas; empty: all."""

LABEL_OF_SLICES = "kubernetes.io/service-name"
"""Label of EndpointSlices: the Service that they belong to."""

ENV_SPEC_HASH = "POD_SPEC_HASH"
"""Environment variable of the engine's container with the spec hash. Unlike the annotation, it cannot be edited."""

ENV_RESTART = "POD_RESTART"
"""Environment variable with the restart that the pod was started for, as a hash of the annotation's value."""

OWN_VARIABLES = ("HOME", "USER", ENV_SPEC_HASH, ENV_RESTART, "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")
"""Variables of the engine's container that the operator sets."""

MANAGED_SELECTOR = f"{LABEL_MANAGED_BY}={FIELD_MANAGER}"

ENGINE_CONTAINER = "engine"
API_PORT_NAME = "http"
ADMIN_PORT_NAME = "admin"
ADMIN_PORT = 10003
"""The port of the runtime's health, metrics and debug pages, which need no API key."""

MAX_NAME_LENGTH = 52
"""Longest name of an InferenceService: its pods add "-<replica>-r<attempt>" and must stay within 63 characters."""
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_RULE = (
    f"the name becomes a Service's and its pods': at most {MAX_NAME_LENGTH} lower-case letters, digits and hyphens, "
    "with a letter first"
)
NAMESPACE_PATTERN = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """The namespace and name of one InferenceService."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def labels_of(body: Mapping[str, Any]) -> Mapping[str, str]:
    """The labels of a live object; empty where it has none."""
    return body["metadata"].get("labels") or {}


def service_labels(name: str, uid: str) -> dict[str, str]:
    """The labels of every child of one InferenceService."""
    return {
        "app.kubernetes.io/name": "ballast",
        "app.kubernetes.io/component": "engine",
        "app.kubernetes.io/instance": name,
        LABEL_MANAGED_BY: FIELD_MANAGER,
        LABEL_SERVICE: name,
        LABEL_OWNER_UID: uid,
    }


def pod_selector(name: str) -> dict[str, str]:
    """The labels by which the pods of one InferenceService are found."""
    return {LABEL_MANAGED_BY: FIELD_MANAGER, LABEL_SERVICE: name}


def selector_text(selector: dict[str, str]) -> str:
    """A label selector in the form of the API's query parameters."""
    return ",".join(f"{key}={value}" for key, value in selector.items())
