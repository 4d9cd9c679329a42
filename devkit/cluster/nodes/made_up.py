"""Simulated nodes and their pods, kept alive by kwok."""

from __future__ import annotations

from pathlib import Path

from devkit.cluster.binaries import program
from devkit.cluster.controlplane import ControlPlane
from devkit.cluster.kube import Kube, Object
from devkit.cluster.process import Process, free_port
from devkit.cluster.waiting import wait_for

BEHAVIOUR = "test.ballast.dev/pods"
"""Key in a pod's nodeSelector: run, loading, rejected, oom, unpullable or slow (kwok_stages.yaml)."""


def kwok(control_plane: ControlPlane) -> Process:
    """The controller that acts as kubelet for every node with the annotation kwok.x-k8s.io/node."""
    flags = {
        "kubeconfig": control_plane.client_config("kwok", "system:masters"),
        "manage-all-nodes": "false",
        "manage-nodes-with-annotation-selector": "kwok.x-k8s.io/node=fake",
        "config": Path(__file__).with_name("kwok_stages.yaml"),
        "server-address": f"127.0.0.1:{free_port()}",
        "node-lease-duration-seconds": "40",
        "cidr": "10.200.0.0/16",
    }
    return Process("kwok", [program("kwok"), *(f"--{k}={v}" for k, v in flags.items())], control_plane.logs)


def made_up_node(
    name: str,
    cpus: int = 64,
    memory: str = "1Ti",
    gpus: int = 2,
    behaviour: str = "run",
    labels: dict[str, str] | None = None,
    pods: int = 1000,
) -> Object:
    """A node with these allocatable resources; `behaviour` selects how its pods behave."""
    resources = {"cpu": str(cpus), "memory": memory, "pods": str(pods), "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                BEHAVIOUR: behaviour,
                **(labels or {}),
            },
        },
        "status": {"capacity": resources, "allocatable": resources},
    }


def add_node(control_plane: ControlPlane, node: Object) -> None:
    """Create the node and return when pods can be scheduled on it."""
    control_plane.kube.create("nodes", node)
    wait_schedulable(control_plane.kube, node["metadata"]["name"])


def wait_schedulable(kube: Kube, name: str) -> None:
    """Return when the node is Ready and the node controller has removed all its taints."""

    def is_ready() -> bool:
        found = kube.get("nodes", name)
        ready = {c["type"]: c["status"] for c in found["status"].get("conditions", [])}.get("Ready")
        return ready == "True" and not found["spec"].get("taints")

    wait_for(f"node {name} to be Ready and without taints", is_ready)


def wait_lost(kube: Kube, name: str) -> None:
    """Return when the node controller, which checks every five seconds, has noticed that the node is not ready.

    Until it notices that the node is back (`wait_schedulable`), it marks new pods on the node as not ready. A kubelet
    would correct that; simulated nodes do not.
    """

    def is_noticed() -> bool:
        taints = kube.get("nodes", name)["spec"].get("taints", [])
        return ("node.kubernetes.io/not-ready", "NoExecute") in {(taint["key"], taint["effect"]) for taint in taints}

    wait_for(f"the node controller to notice that node {name} is not ready", is_noticed)
