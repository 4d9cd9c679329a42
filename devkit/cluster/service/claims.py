"""Bound PersistentVolumeClaims without storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from devkit.cluster.kube import Kube, Object
from devkit.cluster.waiting import wait_for


@contextmanager
def bound_claim(kube: Kube, namespace: str, name: str, access_mode: str) -> Iterator[None]:
    common: Object = {"accessModes": [access_mode], "storageClassName": ""}
    size = {"storage": "1Ti"}
    claim = {"metadata": {"name": name}, "spec": {**common, "resources": {"requests": size}}}
    uid = kube.create("persistentvolumeclaims", claim, namespace)["metadata"]["uid"]
    owner = {"name": name, "namespace": namespace, "uid": uid}
    volume = {**common, "hostPath": {"path": f"/{name}"}, "capacity": size, "claimRef": owner}
    kube.create("persistentvolumes", {"metadata": {"name": uid}, "spec": volume})
    try:
        wait_for(
            f"the claim {name} to be bound",
            lambda: kube.get("persistentvolumeclaims", name, namespace)["status"]["phase"] == "Bound",
        )
        yield
    finally:
        kube.delete("persistentvolumes", uid)
