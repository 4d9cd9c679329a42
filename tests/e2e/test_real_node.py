"""From `kubectl apply` to a pinned endpoint and back, on a real kubelet with the static CPU manager."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import httpx
import pytest

from devkit.cluster.binaries import ROOT, program
from devkit.cluster.kube import Kube, Object
from devkit.cluster.nodes.installed import InstalledNode
from devkit.cluster.nodes.served import CHAT, NAMESPACE, address_of, chat, engine_pods, remove, sample, served
from devkit.cluster.waiting import wait_for

BUILT_IN_MODEL = ROOT / "runtime" / "ballast" / "tiny" / "trained"


def condition(kube: Kube, name: str, kind: str) -> Object:
    status = kube.get("inferenceservices", name, NAMESPACE).get("status", {})
    found: Object = {c["type"]: c for c in status.get("conditions", [])}.get(kind, {"status": "absent"})
    return found


def allowed_cpus(installed: InstalledNode, pod: str) -> str:
    status = installed.kubectl("exec", pod, "--", "cat", "/proc/self/status")
    return next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))


def test_a_tiny_model_is_served_pinned_and_cleaned_up(installed: InstalledNode, client_pod: str, kube: Kube) -> None:
    with served(installed, sample("tiny-cpu")) as name:
        chunks = chat(installed, client_pod, name, tokens=20)
        assert len(chunks) > 5, "streamed, not sent as one chunk"
        assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "length"
        assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)

        wait_for("NUMAPinned", lambda: condition(kube, name, "NUMAPinned")["status"] == "True", timeout_s=60)
        (pod,) = engine_pods(kube, name)
        (placement,) = kube.get("inferenceservices", name, NAMESPACE)["status"]["placement"]
        pod_name = pod["metadata"]["name"]
        assert pod["status"]["qosClass"] == "Guaranteed"
        assert placement["pod"] == pod_name
        assert placement["node"] == installed.node.name
        assert placement["cpus"] == allowed_cpus(installed, pod_name) == "1"
        # The kubelet removes the CPU from all other containers at its next check, every 10 s.
        wait_for("the CPU to be exclusive", lambda: allowed_cpus(installed, client_pod) == "0", timeout_s=30)
        assert placement["memoryNodes"] == "0"
        assert placement["localPercent"] == 100

        columns = installed.kubectl("get", "bisvc", name).splitlines()[0].split()
        assert columns[:7] == ["NAME", "AVAILABLE", "READY", "REASON", "NUMA", "DEVICE", "REPLICAS"]


def test_a_model_on_a_claimed_volume_is_served_and_cannot_be_changed(
    installed: InstalledNode, client_pod: str, kube: Kube
) -> None:
    folder = installed.folder / "models"
    shutil.copytree(BUILT_IN_MODEL, folder / "tiny")
    access = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}, **access}
    claim = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": "models", **access}
    kube.create("persistentvolumes", {"metadata": {"name": "models"}, "spec": volume})
    kube.create("persistentvolumeclaims", {"metadata": {"name": "models"}, "spec": claim}, NAMESPACE)
    source = {"pvc": {"claimName": "models"}}
    model = {"source": source, "ggufPath": "tiny/model.gguf", "configPath": "tiny/config", "servedName": "claimed"}
    with served(installed, sample("tiny-cpu", model=model)) as name:
        assert {chunk["model"] for chunk in chat(installed, client_pod, name, tokens=3)} == {"claimed"}
        (pod,) = engine_pods(kube, name)
        output = installed.kubectl("exec", pod["metadata"]["name"], "--", "sh", "-c", "touch /models/x 2>&1 || true")
        assert "Read-only file system" in output
    kube.delete("persistentvolumeclaims", "models", NAMESPACE)
    kube.delete("persistentvolumes", "models")


def test_the_images_hold_no_compiler_and_run_as_their_own_user(installed: InstalledNode, client_pod: str) -> None:
    found = installed.kubectl("exec", client_pod, "--", "sh", "-c", "command -v gcc cc c++ g++ ld pip pip3; id -u")
    assert found.split() == ["10001"]


def test_a_device_plugins_gpu_is_allocated_and_reported(installed: InstalledNode, kube: Kube) -> None:
    # The device is simulated: without the fallback the engine would exit.
    resources = {"cpus": 1, "memory": "4Gi", "gpus": 1, "cpuFallback": True}
    with served(installed, sample("tiny-gpu", resources=resources)) as name:
        (pod,) = engine_pods(kube, name)
        pod_name = pod["metadata"]["name"]
        assert installed.kubectl("exec", pod_name, "--", "printenv", "NVIDIA_VISIBLE_DEVICES").strip() == "GPU-0"
        wait_for("a report", lambda: kube.get("inferenceservices", name, NAMESPACE)["status"].get("placement"))
        (placement,) = kube.get("inferenceservices", name, NAMESPACE)["status"]["placement"]
        assert placement["cpus"] == allowed_cpus(installed, pod_name)
        # The device is simulated, so the engine computes on the CPU, and the device's NUMA node does not matter to it.
        wait_for("NUMAPinned", lambda: condition(kube, name, "NUMAPinned")["status"] == "True", timeout_s=60)


def test_a_request_for_too_many_exclusive_cpus_is_reported_and_retried_rarely(
    installed: InstalledNode, kube: Kube
) -> None:
    """Bypasses the scheduler, which would reject such a pod before its kubelet does."""
    resources = {"cpus": 2, "memory": "1Gi", "gpus": 0}
    service = sample("tiny-cpu", resources=resources, scheduling={"schedulerName": "binds-anyway"})
    stop = threading.Event()
    binder = threading.Thread(target=bind_anyway, args=(kube, installed.node.name, stop))
    binder.start()
    try:
        kube.apply("inferenceservices", service, NAMESPACE)

        def refused() -> Object:
            found = condition(kube, "tiny-cpu", "Scheduled")
            assert found["status"] == "False", found
            assert found["reason"] in ("TopologyAffinityError", "UnexpectedAdmissionError"), found
            return found

        message = wait_for("the rejection", refused, timeout_s=60)["message"]
        assert installed.node.name in message
        assert "2 CPUs" in message
        time.sleep(45)
        attempts = [
            int(pod["metadata"]["annotations"]["serving.ballast.dev/attempt"]) for pod in engine_pods(kube, "tiny-cpu")
        ]
        assert len(attempts) <= 3
        assert max(attempts) <= 3, "10 s, 20 s, 40 s between attempts: a retry storm would reach hundreds"

        kube.merge("inferenceservices", "tiny-cpu", {"spec": {"resources": {"cpus": 1}}}, NAMESPACE)
        installed.kubectl("wait", "--for=condition=Ready", "bisvc/tiny-cpu", "--timeout=120s")
        assert len(engine_pods(kube, "tiny-cpu")) == 1, "rejected pods are deleted when the replica works"
    finally:
        stop.set()
        binder.join()
        remove(installed, "tiny-cpu")


def bind_anyway(kube: Kube, node: str, stop: threading.Event) -> None:
    while not stop.wait(0.2):
        for pod in kube.list("pods", NAMESPACE):
            if pod["spec"].get("schedulerName") == "binds-anyway" and "nodeName" not in pod["spec"]:
                target = {"apiVersion": "v1", "kind": "Node", "name": node}
                body = {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": pod["metadata"]["name"]},
                    "target": target,
                }
                kube.post("pods", pod["metadata"]["name"], "binding", body, NAMESPACE)


def test_a_killed_engine_restarts_and_is_not_ready_in_the_meantime(
    installed: InstalledNode, client_pod: str, kube: Kube
) -> None:
    with served(installed, sample("tiny-cpu")) as name, seen_ready(kube, name) as readiness:
        os.kill(engine_pid(), signal.SIGKILL)
        wait_for("Ready to become False", lambda: "False" in readiness, timeout_s=30)
        installed.kubectl("wait", "--for=condition=Ready", f"bisvc/{name}", "--timeout=120s")
        (pod,) = engine_pods(kube, name)
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 1
        assert chat(installed, client_pod, name, tokens=3)
    assert readiness[:3] == ["True", "False", "True"]


def engine_pid() -> int:
    (pid,) = [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and b"/bin/ballast\0serve\0" in (folder / "cmdline").read_bytes()
    ]
    return pid


@contextmanager
def seen_ready(kube: Kube, name: str) -> Iterator[list[str]]:
    """Record changes of the Ready status, polled 20 times a second."""
    seen: list[str] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.05):
            status = str(condition(kube, name, "Ready")["status"])
            if not seen or seen[-1] != status:
                seen.append(status)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        wait_for("a first look", lambda: seen)
        yield seen
    finally:
        stop.set()
        thread.join()


NUM_CHOICES, CHOICE_TOKENS = 3, 4000
"""A reply that outlasts the pod's last seconds as an endpoint, after which its engine drains: one choice at a time."""


def test_a_change_drains_the_running_request_and_restarts_once(
    installed: InstalledNode, client_pod: str, kube: Kube
) -> None:
    engine = {"maxBatchSize": 1, "maxNewTokens": CHOICE_TOKENS, "cacheLens": 4096, "drainTimeoutSeconds": 600}
    with served(installed, sample("tiny-cpu", engine=engine)) as name:
        (before,) = engine_pods(kube, name)
        with RunningChat(installed, client_pod, name) as running:
            wait_for("the first chunk", running.first_line)
            kube.merge("inferenceservices", name, {"spec": {"engine": {"cacheLens": 8192}}}, NAMESPACE)
            wait_for("the engine to drain", lambda: is_draining(before["status"]["podIP"]), timeout_s=90)
            assert running.is_running, "the request continues while its engine drains"
            seen = watch_pods_until_replaced(kube, name, before["metadata"]["uid"])
        assert running.exit_code == 0
        assert running.lines[-1] == "[DONE]", "the running request was completed, not aborted"
        chunks = [json.loads(line) for line in running.lines[:-1]]
        finished = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
        assert finished == ["length"] * NUM_CHOICES
        assert all(len(uids) <= 1 for uids in seen), "never two engine pods at the same time"
        assert len({uid for uids in seen for uid in uids}) == 2, "one restart"
        installed.kubectl("wait", "--for=condition=Ready", f"bisvc/{name}", "--timeout=120s")
        (after,) = engine_pods(kube, name)
        assert "8192" in after["spec"]["containers"][0]["args"]
        assert condition(kube, name, "Ready")["observedGeneration"] == 2


class RunningChat:
    """A streamed chat from another pod, read continuously: a client that stops reading would delay the drain."""

    def __init__(self, installed: InstalledNode, client: str, service: str) -> None:
        kubectl = [str(program("kubectl")), f"--kubeconfig={installed.control_plane.kubeconfig}"]
        words = [address_of(installed, service), str(CHOICE_TOKENS), str(NUM_CHOICES)]
        self._argv = [*kubectl, "exec", client, "--", "python3", "-c", CHAT, *words]
        self.lines: list[str] = []
        """Lines received so far."""

    def first_line(self) -> str | None:
        assert self.lines or self.is_running, f"ended with {self.exit_code} before it began"
        return self.lines[0] if self.lines else None

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def __enter__(self) -> RunningChat:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait for its end; after a failure, stop it."""
        if kind is not None:
            self._process.kill()
        self._process.wait(60)
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self.lines.append(line.rstrip("\n"))


def is_draining(ip: str) -> bool:
    """Whether the engine of the pod with this address rejects new requests because it is shutting down."""
    answer = httpx.get(f"http://{ip}:10003/readyz", timeout=5, trust_env=False)
    return answer.status_code == 503 and answer.json()["status"] == "draining"


def watch_pods_until_replaced(kube: Kube, name: str, old_uid: str) -> list[set[str]]:
    """Sets of uids of unfinished pods over time, until a pod other than `old_uid` is Ready."""
    seen: list[set[str]] = []

    def replaced() -> bool:
        pods = engine_pods(kube, name)
        seen.append({pod["metadata"]["uid"] for pod in pods if pod["status"]["phase"] not in ("Succeeded", "Failed")})
        return any(
            pod["metadata"]["uid"] != old_uid
            and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
            for pod in pods
        )

    wait_for("a new pod", replaced, timeout_s=300, interval_s=0.05)
    return seen


@pytest.fixture(autouse=True, scope="module")
def _operators_never_restarted(installed: InstalledNode) -> Iterator[None]:
    yield
    for pod in installed.kube.list("pods", "ballast-system"):
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0, "the operator must not restart"
