"""Random flaps, a stalled etcd and a second actor during rollouts: the operator stops at most one serving pod."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import ApiError, Kube, Object
from devkit.cluster.service.specs import service, wait_ready
from devkit.long import if_long

pytestmark = pytest.mark.usefixtures("operator")

REPLICAS = 3
ROUNDS = 16
LOOK_S = 0.2


def is_ready(pod: Object) -> bool:
    found = pod.get("status", {}).get("conditions", [])
    return any((it["type"], it["status"]) == ("Ready", "True") for it in found)


class Interference:
    """Disturbs a service, and counts the replicas that are down because of the operator alone."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, seed: int) -> None:
        self._cluster, self._kube, self._namespace, self._name = cluster, cluster.kube, namespace, name
        self._random = random.Random(seed)
        self._flapped: set[str] = set()
        """Uids of pods that this class has made unready."""
        self._taken: set[int] = set()
        """Replicas whose pod this class has deleted and that have not been ready since."""
        self._lens = 5000

    def actions(self) -> list[Callable[[], None]]:
        return [self.flap, self.flap, self.recover, self.delete, self.stall, self.roll_out, self.break_spec]

    def act(self) -> None:
        self._random.choice(self.actions())()

    def pods(self) -> list[Object]:
        return self._kube.list("pods", self._namespace, {"serving.ballast.dev/service": self._name})

    def check(self) -> None:
        """At most one replica is not ready, except for those that this class has disturbed."""
        up = set()
        for pod in self.pods():
            replica = int(pod["metadata"]["labels"]["serving.ballast.dev/replica"])
            if "deletionTimestamp" in pod["metadata"]:
                continue
            if is_ready(pod):
                self._taken.discard(replica)
            if is_ready(pod) or pod["metadata"]["uid"] in self._flapped:
                up.add(replica)
        assert len(up | self._taken) >= REPLICAS - 1, (up, self._taken)

    def flap(self) -> None:
        self._set_ready(ready=False)

    def recover(self) -> None:
        self._set_ready(ready=True)

    def delete(self) -> None:
        pod = self._random.choice(self.pods())
        self._taken.add(int(pod["metadata"]["labels"]["serving.ballast.dev/replica"]))
        self._kube.delete("pods", pod["metadata"]["name"], self._namespace)

    def stall(self) -> None:
        self._cluster.control_plane.etcd.pause()
        try:
            time.sleep(7)
        finally:
            self._cluster.control_plane.etcd.resume()
        self._cluster.control_plane.wait_ready()
        for _ in range(REPLICAS):
            self.flap()

    def roll_out(self) -> None:
        self._lens += 1
        self._apply("run")

    def break_spec(self) -> None:
        self._lens += 1
        self._apply("unpullable")

    def _apply(self, behaviour: str) -> None:
        body = service(self._name, behaviour, replicas=REPLICAS, engine={"cacheLens": self._lens})
        self._kube.apply("inferenceservices", body, self._namespace)

    def _set_ready(self, *, ready: bool) -> None:
        """Make one serving pod unready, or make all of these pods ready again."""
        pods = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
        flapped = [pod for pod in pods if pod["metadata"]["uid"] in self._flapped]
        serving = [pod for pod in pods if is_ready(pod)]
        chosen = flapped if ready else serving and [self._random.choice(serving)]
        for pod in chosen:
            uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
            self._flapped = self._flapped - {uid} if ready else self._flapped | {uid}
            status = "True" if ready else "False"
            condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
            try:
                patch = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
                self._kube.merge("pods", name, patch, self._namespace, "status")
            except ApiError as error:
                if error.code not in (404, 409):  # the operator has replaced it in the meantime
                    raise


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, *if_long(2)])
def test_a_disturbed_rollout_takes_down_at_most_one_replica(
    cluster: Cluster, kube: Kube, namespace: str, seed: int
) -> None:
    kube.apply("inferenceservices", service("mixed", replicas=REPLICAS), namespace)
    wait_ready(kube, namespace, "mixed")
    mixed = Interference(cluster, namespace, "mixed", seed)
    for _ in range(ROUNDS):
        mixed.act()
        until = time.monotonic() + 3
        while time.monotonic() < until:
            mixed.check()
            time.sleep(LOOK_S)
    mixed.recover()
    mixed.roll_out()
    wait_ready(kube, namespace, "mixed", meanwhile=mixed.check)
