"""The objects that install the operator without a chart. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ballast_operator.names import FIELD_MANAGER
from ballast_operator.rbac import CLUSTER_RULES, HOME_RULES, WATCHED_RULES, Rule
from ballast_operator.resources.security import container_security, pod_security

NAMESPACE = "ballast-system"
LABELS = {"app.kubernetes.io/name": FIELD_MANAGER, "app.kubernetes.io/part-of": "ballast"}
HEALTH_PORT = 8080

RBAC = "rbac.authorization.k8s.io"


def installation(operator_image: str, runtime_image: str, cpu_runtime_image: str | None) -> list[dict[str, Any]]:
    """Namespace, account, permissions and Deployment, in the order in which they are applied.

    Without an image for services that have no GPUs, they use the runtime's image too."""
    return [
        _object("v1", "Namespace", NAMESPACE, None, labels={"pod-security.kubernetes.io/enforce": "restricted"}),
        _object("v1", "ServiceAccount", FIELD_MANAGER),
        _role("ClusterRole", (*WATCHED_RULES, *CLUSTER_RULES), None),
        _binding("ClusterRoleBinding", "ClusterRole", None),
        _role("Role", HOME_RULES, NAMESPACE),
        _binding("RoleBinding", "Role", NAMESPACE),
        _deployment(operator_image, runtime_image, cpu_runtime_image),
    ]


def _object(
    api_version: str,
    kind: str,
    name: str,
    namespace: str | None = NAMESPACE,
    labels: dict[str, str] | None = None,
    **content: Any,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, **({"namespace": namespace} if namespace else {})}
    metadata["labels"] = {**LABELS, **(labels or {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def _role(kind: str, rules: Sequence[Rule], namespace: str | None) -> dict[str, Any]:
    return _object(f"{RBAC}/v1", kind, FIELD_MANAGER, namespace, rules=[rule.to_api() for rule in rules])


def _binding(kind: str, role: str, namespace: str | None) -> dict[str, Any]:
    return _object(
        f"{RBAC}/v1",
        kind,
        FIELD_MANAGER,
        namespace,
        roleRef={"apiGroup": RBAC, "kind": role, "name": FIELD_MANAGER},
        subjects=[{"kind": "ServiceAccount", "name": FIELD_MANAGER, "namespace": NAMESPACE}],
    )


def _deployment(operator_image: str, runtime_image: str, cpu_runtime_image: str | None) -> dict[str, Any]:
    selector = {"app.kubernetes.io/name": FIELD_MANAGER}
    pod = {
        "serviceAccountName": FIELD_MANAGER,
        "securityContext": pod_security(),
        "containers": [_container(operator_image, runtime_image, cpu_runtime_image)],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "64Mi"}}],
    }
    return _object(
        "apps/v1",
        "Deployment",
        FIELD_MANAGER,
        spec={
            "replicas": 2,
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    )


def _container(operator_image: str, runtime_image: str, cpu_runtime_image: str | None) -> dict[str, Any]:
    return {
        "name": "operator",
        "image": operator_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["ballast-operator"],
        "args": [
            "run",
            f"--runtime-image={runtime_image}",
            *([f"--cpu-runtime-image={cpu_runtime_image}"] if cpu_runtime_image else []),
            "--log-format=json",
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            # kopf reads the user's name, and this uid has no entry in the image's passwd.
            {"name": "USER", "value": FIELD_MANAGER},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108
        ],
        "ports": [{"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": "192Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": container_security(),
        "livenessProbe": _probe("/livez", 20),
        "readinessProbe": _probe("/readyz", 10),
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],  # noqa: S108
    }


def _probe(path: str, period_s: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "health"}, "periodSeconds": period_s, "timeoutSeconds": 5}
