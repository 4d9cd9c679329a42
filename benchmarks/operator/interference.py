"""Edit, delete and relabel the operator's objects while its clock jumps. Prints one JSON line.

    python benchmarks/operator/interference.py [--minutes M] [--services N] [--api_kills K] [--seed S]

Meanwhile the specs change, and the API server is killed K times. Afterwards every service must be Ready, its children
must equal those of a new service with the same spec, every pod must have a cause, the operator must not have restarted,
and it must not write any more. Then all services are deleted, and no object may be left. The exit code is 1 if one of
these fails.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "cluster"))

from devkit.bench_record import bench_record
from devkit.cluster.audit import AuditLog, Call
from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import ApiError, Kube, Object
from devkit.cluster.service.operator import USER, OperatorProcess, install
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import service, wait_ready
from devkit.cluster.waiting import wait_for

NAMESPACE = "interfered"
LABEL = "serving.ballast.dev/service"
CHILDREN = ("services", "poddisruptionbudgets", "networkpolicies", "configmaps", "pods")
REST_S = 60.0
CLOCK_STEPS_S = (-7200, -60, 0, 45, 3600)
PAUSE_S = (0.2, 1.5)
"""Seconds between two actions of the actor."""
EDITS: dict[str, tuple[Object, ...]] = {
    "services": (
        {"spec": {"selector": {"foo": "bar"}}},
        {"spec": {"ports": [{"name": "http", "port": 9999, "targetPort": "http"}]}},
        {"spec": {"publishNotReadyAddresses": True}},
        {"spec": {"sessionAffinity": "ClientIP"}},
    ),
    "poddisruptionbudgets": ({"spec": {"maxUnavailable": 0}}, {"spec": {"selector": {"matchLabels": {"foo": "bar"}}}}),
    "networkpolicies": ({"spec": {"egress": [{}]}}, {"spec": {"podSelector": {"matchLabels": {"foo": "bar"}}}}),
    "configmaps": ({"data": {"more": "x"}}, {"data": {"rules.yaml": "b: 2\n"}}),
}


@dataclass
class Actor:
    """Performs random actions one after another, and counts those that may end a pod."""

    kube: Kube
    names: list[str]
    random: random.Random
    clock: Path
    deeds: Counter[str] = field(default_factory=Counter)
    pods_deleted: Counter[str] = field(default_factory=Counter)
    requested_restarts: Counter[str] = field(default_factory=Counter)

    def act(self) -> None:
        """Performs one action. A missing object is skipped."""
        deed = self.random.choice((self._edit, self._delete, self._relabel, self._orphan, self._change, self._step))
        try:
            deed(self.random.choice(self.names))
        except ApiError as error:
            if error.code not in (404, 409, 422):
                raise
            self.deeds["came to nothing"] += 1
        else:
            self.deeds[deed.__name__.strip("_")] += 1

    def _child(self, name: str, *, pods: bool) -> tuple[str, Object]:
        """Returns an object of the service by its name, because its labels may be missing."""
        resource = self.random.choice(CHILDREN if pods else CHILDREN[:-1])
        bodies = self.kube.list(resource, NAMESPACE)
        found = [body for body in bodies if body["metadata"]["name"].partition("-")[0] == name]
        if not found:
            raise ApiError(404, {})
        return resource, self.random.choice(found)

    def _edit(self, name: str) -> None:
        resource, body = self._child(name, pods=False)
        self.kube.merge(resource, body["metadata"]["name"], self.random.choice(EDITS[resource]), NAMESPACE)

    def _delete(self, name: str) -> None:
        resource, body = self._child(name, pods=True)
        self.kube.delete(resource, body["metadata"]["name"], NAMESPACE)
        self.pods_deleted[name] += resource == "pods"

    def _relabel(self, name: str) -> None:
        resource, body = self._child(name, pods=True)
        labels = {
            self.random.choice(list(body["metadata"].get("labels") or {"none": ""})): None,
            "example.org/by": "me",
        }
        self.kube.merge(resource, body["metadata"]["name"], {"metadata": {"labels": labels}}, NAMESPACE)

    def _orphan(self, name: str) -> None:
        resource, body = self._child(name, pods=True)
        self.kube.merge(resource, body["metadata"]["name"], {"metadata": {"ownerReferences": None}}, NAMESPACE)

    def _change(self, name: str) -> None:
        """Changes the spec as the owner of the service would: in place, or so that the pods are replaced."""
        if self.random.random() < 0.7:
            spec: Object = {"podMetadata": {"labels": {"release": f"r{self.random.randrange(100)}"}}}
        else:
            spec = {"engine": {"chunkSize": 128 + self.random.randrange(1000)}}
            self.requested_restarts[name] += 1
        self.kube.merge("inferenceservices", name, {"spec": spec}, NAMESPACE)

    def _step(self, _: str) -> None:
        self.clock.write_text(str(self.random.choice(CLOCK_STEPS_S)))


def body_of(name: str) -> Object:
    return service(name, engine={"placementRules": {"inline": "a: 1\n"}}, endpoint={"networkPolicy": {}})


def content(kube: Kube, name: str) -> str:
    """The children as text, without the parts that differ between two services with the same spec."""
    found = {}
    for resource in CHILDREN:
        bodies = copy.deepcopy(kube.list(resource, NAMESPACE, {LABEL: name}))
        for body in bodies:
            metadata = body["metadata"]
            for key in set(metadata) - {"labels"}:
                del metadata[key]
            metadata["labels"] = {key: text for key, text in metadata["labels"].items() if "owner-uid" not in key
                                  and not key.startswith("example.org")}  # fmt: skip
            body.pop("status", None)
            for key in ("clusterIP", "clusterIPs", "nodeName"):
                body.get("spec", {}).pop(key, None)
        found[resource] = bodies
    # Later pods of a replica have other names.
    return re.sub("NAME-0-r[0-9]+", "NAME-0", json.dumps(found, sort_keys=True).replace(name, "NAME"))


def differing(kube: Kube, names: list[str]) -> list[str]:
    """The services whose children differ from those of a new service with the same spec."""
    wrong = []
    for name in names:
        twin = f"new{name}"
        requested = kube.get("inferenceservices", name, NAMESPACE)
        kube.create("inferenceservices", {**body_of(twin), "spec": requested["spec"]}, NAMESPACE)
        wait_ready(kube, NAMESPACE, twin)
        try:
            wait_for(name, partial(_are_alike, kube, name, twin), 20, 1)
        except AssertionError:
            wrong.append(name)
            print(content(kube, name), content(kube, twin), sep="\n", file=sys.stderr)
        kube.delete("inferenceservices", twin, NAMESPACE)
    return wrong


def _are_alike(kube: Kube, one: str, other: str) -> bool:
    return content(kube, one) == content(kube, other)


def unexplained(calls: Sequence[Call], actor: Actor) -> dict[str, int]:
    """Pods that the operator made, by service, without the first one, those that the actor deleted and those that spec
    changes need."""
    made, ended = (
        Counter(call.name.partition("-")[0] for call in calls if (call.verb, call.resource, call.code) == kind)
        for kind in (("create", "pods", 201), ("delete", "pods", 200))
    )
    beyond = {}
    for name in actor.names:
        causes = actor.pods_deleted[name] + actor.requested_restarts[name]
        more = max(ended[name] - actor.requested_restarts[name], made[name] - 1 - causes)
        if more > 0:
            beyond[name] = more
    return beyond


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--services", type=int, default=10)
    parser.add_argument("--api_kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        answers = PodAnswers(cluster.kube)
        cluster.start()
        answers.start()
        install(cluster)
        cluster.make_namespace(NAMESPACE)
        clock = Path(folder) / "skew"
        clock.write_text("0")
        operator = OperatorProcess(cluster, "operator", answers.url, "--resync-seconds", "30")
        operator.argv[operator.argv.index("ballast_operator")] = "devkit.cluster.service.skewed"
        operator.env = {**(operator.env or {}), "CLOCK_SKEW_FILE": str(clock)}
        try:
            operator.start()
            operator.wait_leading()
            return interfere(cluster, operator, clock, arguments)
        finally:
            operator.stop()
            answers.stop()
            cluster.stop()


def interfere(cluster: Cluster, operator: OperatorProcess, clock: Path, arguments: argparse.Namespace) -> int:
    """Runs the benchmark, prints the record, and returns the exit code."""
    kube, names = cluster.kube, [f"s{number:02d}" for number in range(arguments.services)]
    audit = cluster.audit()
    for name in names:
        kube.create("inferenceservices", body_of(name), NAMESPACE)
    for name in names:
        wait_ready(kube, NAMESPACE, name)
    actor = Actor(kube, names, random.Random(arguments.seed), clock)
    began = time.monotonic()
    ends, kills = began + 60 * arguments.minutes, 0
    while time.monotonic() < ends:
        actor.act()
        if (
            kills < arguments.api_kills
            and time.monotonic() > began + (kills + 0.5) * (ends - began) / arguments.api_kills
        ):
            cluster.control_plane.restart_apiserver()
            kills += 1
        if kills:
            _say_ready_again(kube)
        time.sleep(actor.random.uniform(*PAUSE_S))
    operator.check()
    ended = time.monotonic()
    for name in names:
        wait_ready(kube, NAMESPACE, name, meanwhile=lambda: _say_ready_again(kube) if kills else None)
    to_ready_s = time.monotonic() - ended
    calls = [call for call in audit.new_writes(USER) if call.resource != "leases" and not call.dry_run]
    wrong = differing(kube, names)
    at_rest = _writes_at_rest(cluster)
    beyond = unexplained(calls, actor)
    for name in names:
        kube.delete("inferenceservices", name, NAMESPACE)
    left = _left(kube)
    figures = {
        "services": len(names),
        "minutes": arguments.minutes,
        "api_kills": kills,
        "deeds": dict(actor.deeds),
        "pods_deleted_by_actor": sum(actor.pods_deleted.values()),
        "restarts_asked": sum(actor.requested_restarts.values()),
        "operator_writes": len(calls),
        "seconds_to_ready": round(to_ready_s, 1),
        "services_that_differ": len(wrong),
        "restarts_without_a_cause": sum(beyond.values()),
        "writes_at_rest": at_rest,
        "objects_left": left,
    }
    print(bench_record("operator/interference", f"seed {arguments.seed}", **figures), flush=True)
    return 1 if wrong or beyond or at_rest or left else 0


def _say_ready_again(kube: Kube) -> None:
    """Does what real kubelets do and simulated ones do not: sets pods ready again once their node is back.

    While the API server is away, the nodes' leases expire and the controller manager sets the pods to not ready.
    """
    for pod in kube.list("pods", NAMESPACE):
        conditions = (pod.get("status") or {}).get("conditions") or []
        state = {found["type"]: found["status"] for found in conditions}
        if state.get("ContainersReady") == "True" and state.get("Ready") == "False":
            again = [found | ({"status": "True"} if found["type"] == "Ready" else {}) for found in conditions]
            with suppress(ApiError):  # the pod is gone
                kube.merge("pods", pod["metadata"]["name"], {"status": {"conditions": again}}, NAMESPACE, "status")


def _writes_at_rest(cluster: Cluster) -> int:
    """Writes of the operator within a minute, after it has repaired what the comparison found."""
    audit = cluster.audit()
    wait_for("a pause to end", lambda: _written(audit, 10) == 0, timeout_s=180)
    return _written(audit, REST_S)


def _written(audit: AuditLog, seconds: float) -> int:
    time.sleep(seconds)
    return len([call for call in audit.new_writes(USER) if call.resource != "leases"])


def _left(kube: Kube) -> int:
    """Objects that the garbage collector has not removed after two minutes."""

    def remaining() -> int:
        return sum(len(kube.list(resource, NAMESPACE, {"app.kubernetes.io/name": "ballast"})) for resource in CHILDREN)

    try:
        wait_for("all objects to be deleted", lambda: remaining() == 0, timeout_s=120, interval_s=1)
    except AssertionError:
        return remaining()
    return 0


if __name__ == "__main__":
    sys.exit(main())
