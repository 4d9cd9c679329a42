"""Fields that some clusters' policies require: a real API server accepts them, and services keep serving."""

from __future__ import annotations

import pytest

from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.specs import service, wait_ready
from devkit.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")

DRIVER = "gpu.example.test"
NODE = "gpu-0"
"""A simulated node, like all nodes of the cluster."""


def pods(kube: Kube, namespace: str, name: str) -> list[Object]:
    return kube.list("pods", namespace, {"serving.ballast.dev/service": name})


def test_changing_the_service_type_and_back_keeps_the_address_and_restarts_nothing(kube: Kube, namespace: str) -> None:
    kube.apply("inferenceservices", service("outside"), namespace)
    wait_ready(kube, namespace, "outside")
    (pod,) = pods(kube, namespace, "outside")
    address = kube.get("services", "outside", namespace)["spec"]["clusterIP"]
    requested = {"type": "NodePort", "annotations": {"cloud.example/scheme": "internal"}}
    kube.merge("inferenceservices", "outside", {"spec": {"endpoint": {"service": requested}}}, namespace)
    made = wait_for("a node port", lambda: _of_type(kube, namespace, "outside", "NodePort"))
    assert made["spec"]["ports"][0]["nodePort"]
    assert made["metadata"]["annotations"]["cloud.example/scheme"] == "internal"
    kube.merge("services", "outside", {"spec": {"externalTrafficPolicy": "Local"}}, namespace)
    wait_for(
        "traffic from all nodes again",
        lambda: kube.get("services", "outside", namespace)["spec"]["externalTrafficPolicy"] == "Cluster",
    )
    kube.merge("inferenceservices", "outside", {"spec": {"endpoint": {"service": None}}}, namespace)
    back = wait_for("an inner Service", lambda: _of_type(kube, namespace, "outside", "ClusterIP"))
    assert back["spec"]["clusterIP"] == address
    assert "nodePort" not in back["spec"]["ports"][0]
    assert "cloud.example/scheme" not in back["metadata"]["annotations"]
    wait_ready(kube, namespace, "outside")
    assert [it["metadata"]["uid"] for it in pods(kube, namespace, "outside")] == [pod["metadata"]["uid"]]


def _of_type(kube: Kube, namespace: str, name: str, kind: str) -> Object | None:
    found = kube.get("services", name, namespace)
    return found if found["spec"]["type"] == kind else None


def test_gpus_are_allocated_by_the_pods_own_resource_claim(kube: Kube, namespace: str) -> None:
    head: Object = {"apiVersion": "resource.k8s.io/v1"}
    kinds = {"class": "deviceclasses", "slice": "resourceslices", "template": "resourceclaimtemplates"}
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    kube.apply(
        kinds["class"],
        {**head, "kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}},
    )
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [{"name": f"gpu-{n}"} for n in range(3)]}
    kube.apply(kinds["slice"], {**head, "kind": "ResourceSlice", "metadata": {"name": namespace}, "spec": spec})
    request = {"name": "two", "exactly": {"deviceClassName": DRIVER, "count": 2}}
    template = {"spec": {"devices": {"requests": [request]}}}
    kube.apply(
        kinds["template"],
        {**head, "kind": "ResourceClaimTemplate", "metadata": {"name": "gpus"}, "spec": template},
        namespace,
    )
    claims = [{"name": "gpu", "request": "two", "resourceClaimTemplateName": "gpus"}]
    resources = {"cpus": 1, "memory": "1Gi", "gpus": 2, "claims": claims, "gpuClaim": "gpu"}
    kube.apply("inferenceservices", service("claimed", resources=resources), namespace)
    wait_ready(kube, namespace, "claimed")
    (claim,) = kube.list("resourceclaims", namespace)
    given = claim["status"]["allocation"]["devices"]["results"]
    assert sorted((each["driver"], each["device"]) for each in given) == [(DRIVER, "gpu-0"), (DRIVER, "gpu-1")]
    (pod,) = pods(kube, namespace, "claimed")
    assert claim["status"]["reservedFor"][0]["uid"] == pod["metadata"]["uid"]
    assert pod["status"]["qosClass"] == "Guaranteed"
    kube.delete("resourceslices", namespace)
    kube.delete("deviceclasses", DRIVER)


def test_user_ids_and_probe_settings_apply_under_the_restricted_standard(kube: Kube, namespace: str) -> None:
    requested = {
        "securityContext": {"runAsUser": 1_000_660_000, "fsGroup": 1_000_660_000, "supplementalGroups": [5]},
        "probes": {"liveness": {"timeoutSeconds": 30}},
    }
    kube.apply("inferenceservices", service("ranged", **requested), namespace)
    wait_ready(kube, namespace, "ranged")
    (pod,) = pods(kube, namespace, "ranged")
    assert pod["spec"]["securityContext"]["runAsUser"] == 1_000_660_000
    kube.merge("inferenceservices", "ranged", {"spec": {"probes": {"liveness": {"timeoutSeconds": 20}}}}, namespace)
    kube.merge("inferenceservices", "ranged", {"spec": {"securityContext": None}}, namespace)
    kube.merge("inferenceservices", "ranged", {"spec": {"securityContext": {"assignedByCluster": True}}}, namespace)
    replaced = wait_for("a pod of the cluster's user", lambda: _with_user(kube, namespace, None))
    assert replaced["metadata"]["uid"] != pod["metadata"]["uid"]
    assert replaced["spec"]["containers"][0]["livenessProbe"]["timeoutSeconds"] == 20
    wait_ready(kube, namespace, "ranged")


def _with_user(kube: Kube, namespace: str, user: int | None) -> Object | None:
    found = [it for it in pods(kube, namespace, "ranged") if "deletionTimestamp" not in it["metadata"]]
    return next((it for it in found if it["spec"]["securityContext"].get("runAsUser") == user), None)
