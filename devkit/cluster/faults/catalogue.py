"""The catalogue of faults: manipulations of the API server's responses while a service is changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from devkit.cluster.cluster import Cluster
from devkit.cluster.faults.proxy import Fault, FaultProxy, but_leases, everything, mutations, watches
from devkit.cluster.kube import documents
from devkit.cluster.service.live_service import LiveService
from devkit.cluster.service.operator import INSTALLATION, OperatorProcess


@dataclass(frozen=True)
class Scene:
    """Objects that a fault acts on. `hold_s`: duration of faults that last for some time."""

    cluster: Cluster
    operator: OperatorProcess
    proxy: FaultProxy
    service: LiveService
    hold_s: float


Change = Callable[[], None]


def _refused(status: int, retry_after_s: int | None = None) -> Callable[[Scene, Change], None]:
    def act(scene: Scene, change: Change) -> None:
        scene.proxy.add(Fault(everything, status=status, retry_after_s=retry_after_s))
        scene.proxy.cut()
        change()
        time.sleep(scene.hold_s)
        scene.proxy.clear()

    return act


def _conflicts(scene: Scene, change: Change) -> None:
    scene.proxy.add(Fault(mutations(), status=409, times=4))
    change()


def _stalled_watches(scene: Scene, change: Change) -> None:
    scene.proxy.freeze_watches()
    change()


def _dropped_watches(scene: Scene, change: Change) -> None:
    """Events that occur while no watch runs are never delivered."""
    scene.proxy.add(Fault(watches(), status=500))
    scene.proxy.cut()
    change()
    time.sleep(scene.hold_s)
    scene.proxy.clear()


def _expired_watches(scene: Scene, change: Change) -> None:
    scene.proxy.add(Fault(watches(), gone=True, times=6))
    scene.proxy.cut()
    change()


def _latency(scene: Scene, change: Change) -> None:
    scene.proxy.add(Fault(but_leases, delay_s=min(5.0, scene.hold_s / 2)))
    change()
    time.sleep(scene.hold_s)
    scene.proxy.clear()


def _resets_within_bodies(scene: Scene, change: Change) -> None:
    scene.proxy.add(Fault(everything, reset="mid-body", times=5))
    change()


def _hung_requests(scene: Scene, change: Change) -> None:
    scene.proxy.add(Fault(mutations(), stall=True, times=1))
    change()


def _restarted_server(scene: Scene, change: Change) -> None:
    change()
    scene.cluster.control_plane.restart_apiserver()


def _permissions_taken_and_given_back(scene: Scene, change: Change) -> None:
    scene.cluster.kube.delete("clusterrolebindings", "ballast-operator")
    scene.proxy.cut()
    change()
    time.sleep(scene.hold_s)
    for document in documents(INSTALLATION):
        if document["kind"] == "ClusterRoleBinding":
            scene.cluster.kube.apply("clusterrolebindings", document)


def _rotated_token(scene: Scene, change: Change) -> None:
    """Running watches end too, as at their time limit."""
    scene.operator.rotate_token()
    scene.proxy.cut()
    change()


FAULTS: dict[str, Callable[[Scene, Change], None]] = {
    "stalled watches": _stalled_watches,
    "dropped watches, children deleted in the gap": _dropped_watches,
    "410 for watches": _expired_watches,
    "409 for writes": _conflicts,
    "429 with Retry-After": _refused(429, retry_after_s=1),
    "500 for everything": _refused(500),
    "401 for everything": _refused(401),
    "latency": _latency,
    "resets within bodies": _resets_within_bodies,
    "a write that is never answered": _hung_requests,
    "API server restart": _restarted_server,
    "a token that is replaced and revoked": _rotated_token,
    "permissions taken and given back": _permissions_taken_and_given_back,
}


def time_to_converge(name: str, scene: Scene, batch_size: int, timeout_s: float) -> float:
    """Seconds from the end of the fault until changes made during it are complete: a new spec, and a deleted child."""
    service = scene.service

    def change() -> None:
        service.change(engine={"maxBatchSize": batch_size})
        service.kube.delete("services", service.name, service.namespace)

    FAULTS[name](scene, change)
    ended = time.monotonic()
    try:
        service.wait_converged(timeout_s)
    finally:
        scene.proxy.clear()
        scene.proxy.cut()
    return time.monotonic() - ended
