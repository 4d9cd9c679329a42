"""Rollouts whose new pods fail, whose old pods flap, and whose control plane stalls: serving pods stay up."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from ballast_operator.control.deciding.take_down import SETTLE_S
from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Kube, Object
from devkit.cluster.nodes.made_up import add_node, made_up_node
from devkit.cluster.service.specs import service, status_of, wait_condition, wait_ready
from devkit.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("operator")

LOOK_S = 0.25


def serving(kube: Kube, namespace: str, name: str, **spec: object) -> dict[str, str]:
    """Uids of the service's pods by name, once it is ready."""
    kube.apply("inferenceservices", service(name, **spec), namespace)
    wait_ready(kube, namespace, name)
    return uids(kube, namespace, name)


def uids(kube: Kube, namespace: str, name: str) -> dict[str, str]:
    found = kube.list("pods", namespace, {"serving.ballast.dev/service": name})
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def set_ready(kube: Kube, namespace: str, name: str, *, ready: bool) -> None:
    """Write the pod's readiness, as its kubelet or the node controller would."""
    status = "True" if ready else "False"
    when = "2026-01-01T00:00:00Z"
    conditions = [{"type": kind, "status": status, "lastTransitionTime": when} for kind in ("Ready", "ContainersReady")]
    kube.merge("pods", name, {"status": {"conditions": conditions}}, namespace, "status")


def watch_pods(kube: Kube, namespace: str, name: str, seconds: float) -> set[str]:
    """Uids of the pods at the first check that were missing at a later one."""
    before, gone, until = set(uids(kube, namespace, name).values()), set[str](), time.monotonic() + seconds
    while time.monotonic() < until:
        gone |= before - set(uids(kube, namespace, name).values())
        time.sleep(LOOK_S)
    return gone


def test_flapping_old_pods_stay_until_the_new_spec_serves(kube: Kube, namespace: str) -> None:
    before = serving(kube, namespace, "flaps", replicas=3)
    kube.apply("inferenceservices", service("flaps", "unpullable", replicas=3), namespace)
    wait_condition(kube, namespace, "flaps", "Ready", "False", "ImagePullFailed")
    for name in ("flaps-0", "flaps-1"):
        set_ready(kube, namespace, name, ready=False)
    gone = watch_pods(kube, namespace, "flaps", SETTLE_S + 5)
    assert not gone & set(before.values())
    for name in ("flaps-0", "flaps-1"):
        set_ready(kube, namespace, name, ready=True)
    wait_condition(kube, namespace, "flaps", "Available", "True")
    now = uids(kube, namespace, "flaps")
    assert [now[name] for name in ("flaps-0", "flaps-1")] == [before[name] for name in ("flaps-0", "flaps-1")]


def test_a_service_that_is_scaled_down_keeps_its_last_pod_if_the_new_spec_has_failed(
    kube: Kube, namespace: str
) -> None:
    before = serving(kube, namespace, "shrinks", replicas=3)
    kube.apply("inferenceservices", service("shrinks", "oom", replicas=3), namespace)
    wait_condition(kube, namespace, "shrinks", "Ready", "False", "OutOfMemory")
    kube.merge("inferenceservices", "shrinks", {"spec": {"replicas": 1}}, namespace)
    wait_for("the others to be deleted", lambda: list(uids(kube, namespace, "shrinks")) == ["shrinks-0"])
    assert watch_pods(kube, namespace, "shrinks", 5) == set()
    assert uids(kube, namespace, "shrinks") == {"shrinks-0": before["shrinks-0"]}
    wait_condition(kube, namespace, "shrinks", "Ready", "False", "OutOfMemory")
    wait_condition(kube, namespace, "shrinks", "Available", "True")
    kube.apply("inferenceservices", service("shrinks", engine={"cacheLens": 5000}), namespace)
    wait_ready(kube, namespace, "shrinks")
    assert uids(kube, namespace, "shrinks")["shrinks-0"] != before["shrinks-0"]


def test_a_stall_of_etcd_in_a_rollout_costs_no_replica(cluster: Cluster, kube: Kube, namespace: str) -> None:
    before = serving(kube, namespace, "stall", replicas=3)
    etcd = cluster.control_plane.etcd
    etcd.pause()
    try:
        time.sleep(8)
    finally:
        etcd.resume()
    cluster.control_plane.wait_ready()

    for name in before:  # like the node controller after the nodes' leases have expired
        set_ready(kube, namespace, name, ready=False)
    kube.apply("inferenceservices", service("stall", replicas=3, engine={"cacheLens": 5000}), namespace)
    gone = watch_pods(kube, namespace, "stall", SETTLE_S - 5)
    assert gone == set()
    for name in before:
        set_ready(kube, namespace, name, ready=True)

    def never_fewer_than_two() -> None:
        assert (status_of(kube, namespace, "stall").get("readyReplicas") or 0) >= 2

    wait_for("it to serve again", lambda: status_of(kube, namespace, "stall").get("readyReplicas") == 3)
    wait_ready(kube, namespace, "stall", meanwhile=never_fewer_than_two)
    assert not set(before.values()) & set(uids(kube, namespace, "stall").values())


NOWHERE = {"nodeSelector": {"test.ballast.dev/pods": "nowhere"}}
AFFINITY = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "example.org/absent", "operator": "Exists"}]}]
            }
        }
    }
}
UNSTARTABLE: dict[str, tuple[Object, str, str]] = {
    "selector": ({"scheduling": NOWHERE}, "NoNodeMatches", "without the label test.ballast.dev/pods=nowhere"),
    "affinity": ({"scheduling": AFFINITY}, "NoNodeMatches", "excluded by the required node affinity"),
    "memory": (
        {"resources": {"cpus": 1, "memory": "900Ti", "gpus": 0}},
        "NoNodeMatches",
        "with less memory than the pod requests",
    ),
    "claim": (
        {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "absent"}}]},
        "ClaimMissing",
        "PersistentVolumeClaim absent does not exist",
    ),
    "device-claim": (
        {
            "resources": {
                "cpus": 1,
                "memory": "1Gi",
                "gpus": 0,
                "claims": [{"name": "a", "resourceClaimName": "absent"}],
            }
        },
        "ClaimMissing",
        "ResourceClaim absent does not exist",
    ),
    "image": (
        {"image": "made.up/none:1", "scheduling": {"nodeSelector": {"test.ballast.dev/pods": "unpullable"}}},
        "ImagePullFailed",
        "not found",
    ),
}


@pytest.mark.parametrize("change", UNSTARTABLE)
def test_the_only_pod_keeps_serving_while_its_successor_could_not_start(
    kube: Kube, namespace: str, change: str
) -> None:
    spec, reason, message = UNSTARTABLE[change]
    before = serving(kube, namespace, "only")
    kube.apply("inferenceservices", service("only", **spec), namespace)
    found = wait_condition(kube, namespace, "only", "Ready", "False", reason)
    assert message in found["message"]
    assert "only-0 of the earlier spec stays" in found["message"]
    assert watch_pods(kube, namespace, "only", 2) == set()
    assert wait_condition(kube, namespace, "only", "Available", "True")["reason"] == "MinimumReplicasAvailable"
    kube.apply("inferenceservices", service("only", engine={"cacheLens": 5000}), namespace)
    wait_ready(kube, namespace, "only")
    assert set(uids(kube, namespace, "only").values()).isdisjoint(before.values())
    wait_for("the check's pod to go", lambda: not kube.find("pods", "only-image-check", namespace))


def test_a_pullable_image_is_checked_and_rolled_out(kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "newer", replicas=2)
    kube.apply("inferenceservices", service("newer", replicas=2, image="made.up/runtime:2"), namespace)
    wait_ready(kube, namespace, "newer")
    assert status_of(kube, namespace, "newer")["images"] == ["made.up/runtime:2"]
    assert kube.find("pods", "newer-image-check", namespace) is None


def test_an_image_is_checked_on_a_node_that_the_serving_pod_fills(cluster: Cluster, kube: Kube, namespace: str) -> None:
    node = f"full-{namespace}"[:63].rstrip("-")
    add_node(cluster.control_plane, made_up_node(node, cpus=2, memory="4Gi"))
    whole = {
        "resources": {"cpus": 2, "memory": "4Gi", "gpus": 0},
        "scheduling": {"nodeSelector": {"kubernetes.io/hostname": node}},
    }
    try:
        serving(kube, namespace, "whole", **whole)
        kube.apply("inferenceservices", service("whole", image="made.up/runtime:2", **whole), namespace)
        wait_ready(kube, namespace, "whole")
        assert status_of(kube, namespace, "whole")["images"] == ["made.up/runtime:2"]
    finally:
        kube.delete("nodes", node)


def test_progress_ends_at_the_deadline_and_begins_again_with_another_spec(kube: Kube, namespace: str) -> None:
    rollout = {"progressDeadlineSeconds": 1}
    kube.apply("inferenceservices", service("late", "unpullable", rollout=rollout), namespace)
    found = wait_condition(kube, namespace, "late", "Progressing", "False", "ProgressDeadlineExceeded")
    assert "ImagePullFailed: late-0: not found" in found["message"]
    wait_condition(kube, namespace, "late", "Stalled", "True", "ProgressDeadlineExceeded")
    failure = status_of(kube, namespace, "late")["lastFailure"]
    assert failure["reason"] == "ImagePullFailed"
    kube.apply("inferenceservices", service("late", rollout=rollout), namespace)
    wait_ready(kube, namespace, "late")
    status = status_of(kube, namespace, "late")
    assert status["lastFailure"] == failure
    assert status["specHash"] != failure["specHash"]
    assert "Stalled" not in {found["type"] for found in status["conditions"]}


def test_a_surge_pod_keeps_every_replica_serving(kube: Kube, namespace: str) -> None:
    surge = {"maxUnavailable": 0, "maxSurge": 1}
    before = serving(kube, namespace, "surge", replicas=2, rollout=surge)

    def every_replica_serves() -> None:
        found = kube.list("pods", namespace, {"serving.ballast.dev/service": "surge"})
        conditions = [condition for pod in found for condition in pod.get("status", {}).get("conditions", [])]
        assert sum((it["type"], it["status"]) == ("Ready", "True") for it in conditions) >= 2

    changed = service("surge", replicas=2, rollout=surge, engine={"cacheLens": 5000})
    kube.apply("inferenceservices", changed, namespace)
    wait_ready(kube, namespace, "surge", meanwhile=every_replica_serves)
    wait_for("the surge pod to be deleted", lambda: set(uids(kube, namespace, "surge")) == {"surge-0", "surge-1"})
    assert set(uids(kube, namespace, "surge").values()).isdisjoint(before.values())


def test_a_paused_rollout_keeps_its_pods_until_it_is_resumed(kube: Kube, namespace: str) -> None:
    before = serving(kube, namespace, "paused", rollout={"paused": True})
    changed = service("paused", rollout={"paused": True}, engine={"cacheLens": 5000})
    kube.apply("inferenceservices", changed, namespace)
    wait_condition(kube, namespace, "paused", "Progressing", "Unknown", "Paused")
    assert uids(kube, namespace, "paused") == before
    kube.merge("inferenceservices", "paused", {"spec": {"rollout": {"paused": False}}}, namespace)
    wait_ready(kube, namespace, "paused")
    assert set(uids(kube, namespace, "paused").values()).isdisjoint(before.values())


def command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    config = cluster.control_plane.client_config("history", "system:masters")
    argv = [sys.executable, "-m", "ballast_operator", *words]
    environment = {**os.environ, "KUBECONFIG": str(config)}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_an_undo_brings_the_spec_back_that_served(cluster: Cluster, kube: Kube, namespace: str) -> None:
    serving(kube, namespace, "undone", replicas=2, rollout={"progressDeadlineSeconds": 1})
    good = kube.get("inferenceservices", "undone", namespace)["spec"]
    change = {"spec": {"engine": {"cacheLens": 5000}, "scheduling": {"nodeSelector": {"test.ballast.dev/pods": "oom"}}}}
    kube.merge("inferenceservices", "undone", change, namespace)
    wait_condition(kube, namespace, "undone", "Progressing", "False", "ProgressDeadlineExceeded")
    kube.merge("inferenceservices", "undone", {"spec": {"replicas": 3}}, namespace)

    def listed() -> list[list[str]]:
        found = command(cluster, "history", "undone", "--namespace", namespace)
        assert found.returncode == 0, found.stderr
        return [line.split(maxsplit=3) for line in found.stdout.splitlines()[1:]]

    assert [(line[0], line[3:]) for line in listed()] == [("1", []), ("2", ["current, failed: OutOfMemory"])]
    undone = command(cluster, "undo", "undone", "--namespace", namespace)
    assert (undone.returncode, undone.stdout) == (0, f"{namespace}/undone has the spec of revision 1 again\n")
    wait_ready(kube, namespace, "undone")
    assert kube.get("inferenceservices", "undone", namespace)["spec"] == {**good, "replicas": 3}
    assert [line[0] for line in listed()] == ["2", "3"]
    absent = command(cluster, "undo", "undone", "--namespace", namespace, "--to-revision", "9")
    assert absent.returncode == 2
    assert "there is no revision 9; known: 2, 3" in absent.stderr
