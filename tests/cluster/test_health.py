"""The health of services in every state, according to kstatus (Flux, helm --wait) and the Lua check for Argo CD."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from devkit.cluster.binaries import program
from devkit.cluster.kube import Kube, Object
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.cluster.service.specs import service, wait_condition, wait_ready

pytestmark = pytest.mark.usefixtures("operator")

PAGE = Path(__file__).parents[2] / "docs/kubernetes/gitops.md"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Lua check in the documentation, as Argo CD runs it."""
    (block,) = re.findall(r"health\.serving\S+: \|\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    path = tmp_path_factory.mktemp("argo") / "health.lua"
    path.write_text(block)
    return path


def answer(body: Object, *words: str | Path) -> str:
    done = subprocess.run(
        [program("health"), *words], input=json.dumps(body), capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def health(body: Object, script: Path) -> tuple[str, str]:
    """The status according to kstatus and Argo CD."""
    return answer(body, "kstatus"), answer(body, "lua", script)


SOON = {"rollout": {"progressDeadlineSeconds": 1}}
FAILED: dict[str, tuple[Object, str]] = {
    "image": (service("image", "unpullable", **SOON), "ImagePullFailed"),
    "memory": (service("memory", "oom", **SOON), "OutOfMemory"),
    "refused": (service("refused", "rejected", **SOON), "TopologyAffinityError"),
    "nowhere": (service("nowhere", "nowhere", **SOON), "Unschedulable"),
}


@pytest.mark.parametrize("name", FAILED)
def test_a_service_that_makes_no_progress_has_failed(kube: Kube, namespace: str, script: Path, name: str) -> None:
    body, reason = FAILED[name]
    kube.apply("inferenceservices", body, namespace)
    found = wait_condition(kube, namespace, name, "Stalled", "True", "ProgressDeadlineExceeded")
    assert f"{reason}: " in found["message"]
    assert health(kube.get("inferenceservices", name, namespace), script) == ("Failed", "Degraded")


def test_a_service_within_its_deadline_is_progressing(
    kube: Kube, namespace: str, script: Path, answers: PodAnswers
) -> None:
    kube.apply("inferenceservices", service("early", "unpullable"), namespace)
    page, answers.pages["/readyz"] = answers.pages["/readyz"], (503, {"status": "loading", "progress": 0.4})
    try:
        kube.apply("inferenceservices", service("loads", "loading"), namespace)
        wait_condition(kube, namespace, "loads", "Ready", "False", "Loading")
        wait_condition(kube, namespace, "early", "Ready", "False", "ImagePullFailed")
        for name in ("early", "loads"):
            assert health(kube.get("inferenceservices", name, namespace), script) == ("InProgress", "Progressing")
    finally:
        answers.pages["/readyz"] = page


def test_a_service_that_serves_stops_or_is_refused(kube: Kube, namespace: str, script: Path) -> None:
    def now() -> tuple[str, str]:
        return health(kube.get("inferenceservices", "s", namespace), script)

    kube.apply("inferenceservices", service("s"), namespace)
    wait_ready(kube, namespace, "s")
    assert now() == ("Current", "Healthy")
    newer = kube.get("inferenceservices", "s", namespace)
    newer["metadata"]["generation"] += 1
    assert health(newer, script) == ("InProgress", "Progressing")
    kube.apply("inferenceservices", service("s", engine={"cacheLens": 5000}, rollout={"paused": True}), namespace)
    wait_condition(kube, namespace, "s", "Progressing", "Unknown", "Paused")
    assert now() == ("InProgress", "Suspended")
    kube.apply("inferenceservices", service("s", replicas=0), namespace)
    wait_condition(kube, namespace, "s", "Ready", "False", "ScaledToZero")
    assert now() == ("InProgress", "Healthy")
    beyond = {"source": {"hostPath": {"path": "/etc"}}}
    kube.apply("inferenceservices", service("s", model=beyond), namespace)
    wait_condition(kube, namespace, "s", "Ready", "False", "NotAllowed")
    assert now() == ("Failed", "Degraded")
