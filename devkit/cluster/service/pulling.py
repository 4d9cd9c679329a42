"""Model pulls for tests: the Job's pods are simulated, and the caller acts as their kubelet."""

from __future__ import annotations

import json
from typing import Any

from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.specs import service
from devkit.cluster.waiting import wait_for

PULL = "serving.ballast.dev/pull"


def make_claim(kube: Kube, namespace: str) -> None:
    """Create a claim and bind it to its own volume. If the scheduler sees a pod before it knows the volume, the pod may
    wait minutes until the scheduler retries."""
    of_the_volume = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"]}
    volume = {
        "metadata": {"name": namespace},
        "spec": {
            **of_the_volume,
            "hostPath": {"path": "/srv"},
            "claimRef": {"namespace": namespace, "name": "models"},
            "storageClassName": "",
        },
    }
    kube.create("persistentvolumes", {"apiVersion": "v1", "kind": "PersistentVolume", **volume})
    requested = {
        "resources": {"requests": {"storage": "1Gi"}},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
    }
    claim = {"metadata": {"name": "models"}, "spec": {**requested, "volumeName": namespace}}
    kube.create("persistentvolumeclaims", {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim}, namespace)
    wait_for(
        "a bound claim",
        lambda: kube.get("persistentvolumeclaims", "models", namespace)["status"].get("phase") == "Bound",
    )


def pulled(name: str, **source: object) -> Object:
    hub = {"repo": "org/tiny", "quant": "Q8_0", "pvc": {"claimName": "models"}, **source}
    return service(name, model={"source": {"huggingFace": hub}})


def pulling_pod(kube: Kube, namespace: str, other_than: str = "") -> Object:
    """Wait until a pull pod with a name other than `other_than` runs, and return it."""

    def there() -> Object:
        found = [pod for pod in kube.list("pods", namespace) if PULL in pod["metadata"].get("labels", {})]
        found = [pod for pod in found if pod["metadata"]["name"] != other_than]
        assert len(found) == 1
        [pod] = found
        assert pod["status"]["phase"] == "Running", pod["status"]
        return pod

    return wait_for("the pod that pulls", there)


def set_status(kube: Kube, pod: Object, *, phase: str = "Running", state: Object | None = None, **more: Any) -> None:
    """Set the pod's phase, and its container's state."""
    [container] = pod["status"]["containerStatuses"]
    statuses = [{**container, "state": state or container["state"], "ready": False, **more.pop("container", {})}]
    status = {"phase": phase, "containerStatuses": statuses, **more}
    kube.merge("pods", pod["metadata"]["name"], {"status": status}, pod["metadata"]["namespace"], "status")


def terminated(code: int, reason: str, message: str) -> Object:
    """State of a terminated container with a termination message."""
    at = "2026-01-01T00:00:00Z"
    text = json.dumps({"reason": reason, "message": message})
    return {"terminated": {"exitCode": code, "reason": "Error", "message": text, "startedAt": at, "finishedAt": at}}
