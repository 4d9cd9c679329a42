"""Invariants that are checked continuously while a test runs."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from types import TracebackType

import httpx

from devkit.cluster.kube import ApiError, Kube, Object
from devkit.cluster.service.endpoints import ready_services

INTERVAL_S = 0.1
ENDPOINT_LAG_S = 120.0
EXPIRED = 410
UNANSWERABLE = (400, EXPIRED)
"""Codes for requests that are invalid or whose version is too old. Other errors are temporary and are retried."""


class Invariants:
    """Polls a namespace from a thread; leaving the block raises the first violation.

    `endpoint_lag_s`: how long a service without endpoints may stay Ready while the operator is dead or cut off from the
    API server. No service may become Ready without an endpoint.
    """

    def __init__(self, kube: Kube, namespace: str, endpoint_lag_s: float = ENDPOINT_LAG_S) -> None:
        self._kube, self._namespace, self._endpoint_lag_s = kube, namespace, endpoint_lag_s
        self._ready_before: set[str] = set()
        self._unreachable_since: dict[str, float] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._before: dict[str, Object] = {}
        self.violations: list[str] = []
        self.looks = 0

    def __enter__(self) -> Invariants:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(30)
        if kind is None:
            assert self.looks, "the invariants were never checked"
            assert not self.violations, self.violations[0]

    def _run(self) -> None:
        while not self._ending.wait(INTERVAL_S):
            try:
                services = self._kube.list("inferenceservices", self._namespace)
                reachable = ready_services(self._kube, self._namespace)
                pods = self._kube.list("pods", self._namespace)
                ready = {body["metadata"]["name"]: body["metadata"] for body in services if _is_ready(body)}
                self._became_ready_with_endpoints([ready[name] for name in ready.keys() - self._ready_before])
                for body in services:
                    self._status_is_honest(body)
            except httpx.TransportError:
                continue  # the API server restarts; skip this check
            except ApiError as error:
                if error.code in UNANSWERABLE:
                    self.violations.append(f"a look was refused: {error}")
                continue
            self._one_pod_a_replica(pods)
            self._ready_stays_reachable(ready.keys() - reachable)
            self._ready_before = set(ready)
            self.looks += 1

    def _became_ready_with_endpoints(self, ready: list[Object]) -> None:
        """Checks the cluster state at that resource version: the test may have removed objects since then."""
        for metadata in ready:
            name, version = metadata["name"], metadata["resourceVersion"]
            if name not in ready_services(self._kube, self._namespace, name, at=version):
                self.violations.append(f"{name} became Ready without a ready endpoint")

    def _ready_stays_reachable(self, unreachable: set[str]) -> None:
        now = time.monotonic()
        self._unreachable_since = {name: self._unreachable_since.get(name, now) for name in unreachable}
        for name, since in self._unreachable_since.items():
            if now - since > self._endpoint_lag_s:
                self.violations.append(f"{name} is Ready, and had no ready endpoint for {now - since:.0f} s")

    def _one_pod_a_replica(self, pods: list[Object]) -> None:
        replicas = Counter(
            (labels.get("serving.ballast.dev/service"), labels.get("serving.ballast.dev/replica"))
            for pod in pods
            if pod["status"].get("phase") not in ("Failed", "Succeeded")
            and (labels := pod["metadata"].get("labels") or {})
        )
        self.violations += [f"{count} pods of {replica}" for replica, count in replicas.items() if count > 1]

    def _status_is_honest(self, body: Object) -> None:
        name, status = body["metadata"]["name"], body.get("status") or {}
        if status.get("observedGeneration", 0) > body["metadata"]["generation"]:
            self.violations.append(f"{name}: a generation was observed that is not there yet")
        before = self._before.get(body["metadata"]["uid"], body)
        if _times(before) != _times(body):
            versions = self._versions_since(before, name)
            for earlier, later in itertools.pairwise(versions):
                for kind in _times_that_changed_alone(earlier, later):
                    self.violations.append(f"{name}: {kind} changed its time and not its status")
            body = versions[-1] if versions else body
        self._before[body["metadata"]["uid"]] = body

    def _versions_since(self, before: Object, name: str) -> list[Object]:
        """`before` and the later versions: a status may have changed and changed back between two checks. Empty if the
        API server has restarted and no longer knows these versions."""
        version = before["metadata"]["resourceVersion"]
        try:
            return [before, *self._kube.versions_after(version, "inferenceservices", name, self._namespace)]
        except ApiError as error:
            if error.code == EXPIRED:
                return []
            raise


def _times(body: Object) -> dict[str, str]:
    """The lastTransitionTime of each condition."""
    return {c["type"]: c["lastTransitionTime"] for c in (body.get("status") or {}).get("conditions", [])}


def _times_that_changed_alone(before: Object, after: Object) -> list[str]:
    """Types of conditions whose lastTransitionTime changed although their status did not."""
    had = {c["type"]: c for c in (before.get("status") or {}).get("conditions", [])}
    return [
        c["type"]
        for c in (after.get("status") or {}).get("conditions", [])
        if (old := had.get(c["type"]))
        and old["status"] == c["status"]
        and old["lastTransitionTime"] != c["lastTransitionTime"]
    ]


def _is_ready(body: Object) -> bool:
    """Whether it is Ready for its newest spec; conditions of older specs do not count."""
    found = {c["type"]: c for c in (body.get("status") or {}).get("conditions", [])}.get("Ready", {})
    return bool(found.get("status") == "True" and found["observedGeneration"] == body["metadata"]["generation"])
