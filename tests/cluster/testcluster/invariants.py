"""What must hold at every moment, looked at while a test runs."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType

from testcluster.kube import Kube, Object

INTERVAL_S = 0.1


class Invariants:
    """Polls a namespace from a thread; leaving the block raises the first violation."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._before: dict[tuple[str, str], Object] = {}
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
            assert self.looks, "nothing was looked at"
            assert not self.violations, self.violations[0]

    def _run(self) -> None:
        while not self._ending.wait(INTERVAL_S):
            try:
                services = self._kube.list("inferenceservices", self._namespace)
                pods = self._kube.list("pods", self._namespace)
            except Exception:  # noqa: BLE001  the API server may be restarting; what cannot be seen is not judged
                continue
            self._one_pod_a_replica(pods)
            for body in services:
                self._status_is_honest(body)
            self.looks += 1

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
        for found in status.get("conditions", []):
            before = self._before.get((name, found["type"]))
            same = ("status", "lastTransitionTime")
            if before is not None and [before[key] == found[key] for key in same] == [True, False]:
                self.violations.append(f"{name}: {found['type']} changed its time and not its status")
            self._before[name, found["type"]] = found
