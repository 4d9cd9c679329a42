"""Runs the tutorial's commands on the real node exactly as written."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from ballast_operator.version import __version__ as VERSION
from devkit.cluster.binaries import ROOT, program
from devkit.cluster.kube import Object
from devkit.cluster.nodes.images import ARCHIVES, OPERATOR_IMAGE, RUNTIME_IMAGE
from devkit.cluster.nodes.installed import CRDS, OPERATOR_NAMESPACE, InstalledNode
from devkit.cluster.waiting import wait_for

BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND_TIMEOUT_S = 400
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
MEGABYTE = 10**6


@pytest.fixture(scope="module")
def bare(installed: InstalledNode) -> InstalledNode:
    """The node without operator and definition; its images have the chart's default names."""
    installed.kubectl("delete", "-f", str(installed.folder / "operator.yaml"), "--timeout=120s")
    installed.kubectl("delete", "-f", str(CRDS), "--timeout=120s")
    for image, name in ((OPERATOR_IMAGE, f"operator:{VERSION}"), (RUNTIME_IMAGE, f"runtime:{VERSION}-cpu")):
        installed.node.ctr("images", "tag", "--force", image, f"docker.io/library/ballast-{name}")
    installed.kubectl("create", "namespace", OPERATOR_NAMESPACE)
    installed.kubectl("label", "namespace", OPERATOR_NAMESPACE, "default", RESTRICTED)
    return installed


@pytest.fixture(scope="module")
def environment(bare: InstalledNode, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Shell environment with kubectl, helm, ballast-operator and the cluster's kubeconfig."""
    commands = tmp_path_factory.mktemp("bin")
    for name in ("kubectl", "helm"):
        (commands / name).symlink_to(program(name))
    (commands / "ballast-operator").symlink_to(ROOT / ".venv/bin/ballast-operator")
    home = tmp_path_factory.mktemp("home")
    config = str(bare.control_plane.kubeconfig)
    return {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(home), "KUBECONFIG": config}


def blocks() -> Iterator[str]:
    yield from BLOCK.findall((ROOT / "docs/quickstart-kubernetes.md").read_text())


def type_in(block: str, environment: dict[str, str]) -> str:
    """Output of the commands; each of them must succeed."""
    argv = ["bash", "-euo", "pipefail", "-c", block]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
    return done.stdout


def engine(bare: InstalledNode) -> Object:
    (pod,) = bare.kube.list("pods", "default", {"serving.ballast.dev/service": "tiny-cpu"})
    return pod


def runs_restricted(bare: InstalledNode, *where: str) -> None:
    """Check that pods run as user 10001 with a read-only root file system."""
    message = bare.kubectl("exec", *where, "--", "sh", "-c", "id -u; touch /opt/x 2>&1 || true")
    uid, refusal = message.splitlines()
    assert uid == "10001"
    assert "Read-only file system" in refusal


def after_install(bare: InstalledNode, message: str) -> None:
    assert "kubectl get bisvc" in message, "the notes name the next command"
    runs_restricted(bare, "--namespace", OPERATOR_NAMESPACE, "deployment/ballast-operator")


def after_ready(bare: InstalledNode, message: str) -> None:
    columns = dict(zip(message.splitlines()[-2].split(), message.splitlines()[-1].split(), strict=True))
    assert (columns["READY"], columns["REASON"]) == ("True", "Serving")
    pod = engine(bare)["metadata"]["name"]
    runs_restricted(bare, pod)
    doctor = bare.kubectl("exec", pod, "--", "ballast", "doctor")
    assert "FAIL" not in doctor


def after_the_first_token(bare: InstalledNode, message: str) -> None:
    reply = json.loads(message)
    assert reply["choices"][0]["message"]["content"]


def after_removal(bare: InstalledNode, message: str) -> None:
    assert "uninstalled" in message
    assert bare.kube.find("customresourcedefinitions", "inferenceservices.serving.ballast.dev")
    assert not bare.kube.list("deployments", OPERATOR_NAMESPACE)


CHECKS = {
    "helm install": after_install,
    "kubectl get bisvc\n": after_ready,
    "/v1/chat/completions": after_the_first_token,
    "helm uninstall": after_removal,
}
"""Conditions that must hold after the block with these words."""


def test_the_tutorials_commands_have_the_described_results(bare: InstalledNode, environment: dict[str, str]) -> None:
    checked = set()
    uid = ""
    for block in blocks():
        if "helm upgrade" in block:
            uid = engine(bare)["metadata"]["uid"]
        message = type_in(block, environment)
        for words, check in CHECKS.items():
            if words in block:
                check(bare, message)
                checked.add(words)
        if "helm upgrade" in block:
            wait_for("the upgraded operator", lambda: num_operators(bare) == 2, timeout_s=60)
            assert engine(bare)["metadata"]["uid"] == uid, "running models must not restart"
    assert checked == CHECKS.keys()
    assert uid


def num_operators(bare: InstalledNode) -> int:
    return len(bare.kube.list("pods", OPERATOR_NAMESPACE, {"app.kubernetes.io/name": "ballast-operator"}))


@pytest.mark.parametrize(
    ("image", "most"), [("ballast-operator-e2e", 250 * MEGABYTE), ("ballast-runtime-e2e-cpu", 900 * MEGABYTE)]
)
def test_images_are_small(image: str, most: int) -> None:
    """Unpacked size, as in an archive; for the runtime image without CUDA libraries."""
    assert (ARCHIVES / f"{image}.tar").stat().st_size <= most
