"""The pod that checks whether the images of a service's pods can be pulled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.names import FIELD_MANAGER, LABEL_MANAGED_BY, LABEL_OWNER_UID
from ballast_operator.resources.security import container_security
from ballast_operator.spec_hash import short_hash

ANNOTATION_CHECKED = "serving.ballast.dev/checked-images"
"""Hash of the template of the pod."""

KEPT = ("imagePullSecrets", "serviceAccountName", "nodeSelector", "tolerations", "runtimeClassName", "schedulerName")
"""Fields of the engine's pod that decide where and with which credentials an image is pulled."""

LIMITS = {"cpu": "10m", "memory": "16Mi"}
REQUESTS = dict.fromkeys(LIMITS, "0")
"""Nothing: the pod that is to be replaced may have all resources of its node. Quotas want them to be set."""


def image_check_name(service: InferenceService) -> str:
    """The pod's name. No replica can have it."""
    return f"{service.ref.name}-image-check"


def images_of(pod: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The images of a pod's containers, each with its pull policy, in their order."""
    spec = pod["spec"]
    containers = [*(spec.get("initContainers") or []), *spec["containers"]]
    found = [(str(container["image"]), str(container.get("imagePullPolicy") or "")) for container in containers]
    return list(dict.fromkeys(found))


def build_image_check(service: InferenceService, pod: Mapping[str, Any], images: Iterable[tuple[str, str]]) -> Any:
    """The pod that pulls these images where the engine's `pod` would run.

    It is not one of the service's pods: it lacks the labels that Services and budgets select.
    """
    node_affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity")
    containers = [
        {
            "name": f"image-{number}",
            "image": image,
            **({"imagePullPolicy": policy} if policy else {}),
            # A container that exits in any way had its image; the image need not contain this program.
            "command": ["true"],
            "resources": {"requests": dict(REQUESTS), "limits": dict(LIMITS)},
            "securityContext": container_security(),
        }
        for number, (image, policy) in enumerate(images)
    ]
    spec = {
        **{name: pod["spec"][name] for name in KEPT if name in pod["spec"]},
        **({"affinity": {"nodeAffinity": node_affinity}} if node_affinity else {}),
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod["spec"]["securityContext"],
        "containers": containers,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": image_check_name(service),
            "namespace": service.ref.namespace,
            "labels": {
                "app.kubernetes.io/name": "ballast",
                "app.kubernetes.io/component": "image-check",
                LABEL_MANAGED_BY: FIELD_MANAGER,
                LABEL_OWNER_UID: service.uid,
            },
            "annotations": {ANNOTATION_CHECKED: short_hash(spec)},
            "ownerReferences": [service.owner_reference()],
        },
        "spec": spec,
    }
