"""An image with CUDA's libraries on a real node without a GPU, in a namespace that enforces `restricted`.

The node reaches no other machine, so all compilation uses only files of the image.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ballast_operator.folders import KERNELS_DIRECTORY
from ballast_operator.resources.pod import KERNELS_ENV
from ballast_operator.resources.security import USER, container_security, pod_security
from devkit.cluster.kube import Kube, Object
from devkit.cluster.nodes.images import ARCHIVES, RUNTIME_IMAGE, VARIANT
from devkit.cluster.nodes.installed import InstalledNode
from devkit.cluster.nodes.served import NAMESPACE, chat, engine_pods, sample, served
from devkit.cluster.waiting import wait_for
from devkit.kernels.script import COMPILES_ONE

RESTRICTED = "restricted"
KERNELS = "kernels"
GIGABYTE = 10**9
MAX_BYTES = {"runtime": 5.7 * GIGABYTE, "cuda": 6.3 * GIGABYTE}
COMPILING_S = 900
WITH_FLASHINFER = pytest.mark.skipif(VARIANT != "cuda", reason="this image does not contain flashinfer")

FLASHINFER_KERNELS = """
import os, subprocess, sys, time
from pathlib import Path

begin = time.monotonic()
driver = Path("/tmp/libcuda.so.1")  # kernels are linked with the driver's, which nodes with a GPU mount
subprocess.run(["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", driver, "-x", "c", os.devnull], check=True)
os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"

import torch
from ballast.host.nvcc import use_packaged_tools
from ballast.model.hybrid.attention.flashinfer import RANK, ROPE_DIM

use_packaged_tools(Path(os.environ["FLASHINFER_WORKSPACE_BASE"], "link"), driver)
from flashinfer.jit.attention.modules import gen_batch_mla_module

half = torch.float16
for backend in ("fa2", "fa3"):
    made = gen_batch_mla_module(backend, half, half, half, torch.int32, RANK, ROPE_DIM, False)
    made.build(verbose=False)
    print(f"{backend} is there after {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    print(backend, made.jit_library_path.stat().st_mtime_ns, flush=True)
"""
"""Compiles the kernels for `BatchMLAPagedAttentionWrapper.plan` on a Hopper GPU, and prints their times."""


@pytest.fixture(scope="module", autouse=True)
def restricted(installed: InstalledNode) -> None:
    """A namespace that admits only restricted pods."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    installed.kube.create("namespaces", {"metadata": {"name": RESTRICTED, "labels": labels}})


@pytest.fixture(scope="module")
def kernels_volume(installed: InstalledNode) -> Path:
    """The folder behind a claim for compiled kernels."""
    folder = installed.folder / KERNELS
    folder.mkdir()
    os.chown(folder, USER, USER)
    access = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}, **access}
    claim = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": KERNELS, **access}
    installed.kube.create("persistentvolumes", {"metadata": {"name": KERNELS}, "spec": volume})
    installed.kube.create("persistentvolumeclaims", {"metadata": {"name": KERNELS}, "spec": claim}, RESTRICTED)
    return folder


def test_the_image_is_not_larger_than_documented() -> None:
    archive = ARCHIVES / f"{RUNTIME_IMAGE.rpartition('/')[2].replace(':', '-')}.tar"
    print(f"{RUNTIME_IMAGE}: {archive.stat().st_size / GIGABYTE:.2f} GB unpacked")
    assert archive.stat().st_size <= MAX_BYTES[VARIANT]


def test_the_doctor_reports_the_contents_of_the_image(installed: InstalledNode) -> None:
    code, message = run(installed, "doctor", ["ballast", "doctor"])
    print(message)
    assert code == 0
    assert "auto is cpu: NVIDIA's driver or a GPU is missing" in message
    held = {words[1] for words in map(str.split, message.splitlines()) if words and words[0] == "ok"}
    assert {"torch", "triton"} <= held
    assert ("flashinfer-python" in held) == (VARIANT == "cuda")


def test_cuda_by_name_ends_by_name(installed: InstalledNode) -> None:
    code, message = run(installed, "cuda", ["ballast", "serve", "--device", "cuda"])
    print(message)
    assert code == 2
    last = message.splitlines()[-1]
    assert "device" in last
    assert "finds no CUDA device here" in last


def test_auto_falls_back_to_the_cpu_reports_it_and_chats(installed: InstalledNode, client_pod: str, kube: Kube) -> None:
    """The pod has a simulated device from the node's plugin."""
    with served(installed, sample("tiny-gpu")) as name:
        chunks = chat(installed, client_pod, name, tokens=20)
        message = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        (pod,) = [pod["metadata"]["name"] for pod in engine_pods(kube, name)]
        log = installed.kubectl("logs", pod, "-n", NAMESPACE)
        (device,) = [line for line in map(json.loads, log.splitlines()) if line.get("event") == "device"]
        uid, refusal = installed.kubectl("exec", pod, "--", "sh", "-c", "id -u; touch /opt/x 2>&1 || true").splitlines()
        print(device, uid, refusal, message, sep="\n")
        assert message
        assert (uid, "Read-only file system" in refusal) == ("10001", True)
        assert device["device"] == "cpu"
        assert device["why"] == "NVIDIA's driver or a GPU is missing"


def test_tritons_kernels_are_compiled_and_outlive_the_pod(installed: InstalledNode, kernels_volume: Path) -> None:
    assert run(installed, "triton", ["python3", "-c", COMPILES_ONE], keeps_kernels=True) == (0, "cubin True")
    made = {path: path.stat().st_mtime_ns for path in (kernels_volume / "triton").rglob("*.cubin")}
    assert len(made) == 1
    assert run(installed, "triton-again", ["python3", "-c", COMPILES_ONE], keeps_kernels=True) == (0, "cubin True")
    assert made == {path: path.stat().st_mtime_ns for path in (kernels_volume / "triton").rglob("*.cubin")}


@WITH_FLASHINFER
def test_flashinfer_kernels_are_compiled_with_the_images_tools_and_cached(
    installed: InstalledNode, kernels_volume: Path
) -> None:
    code, first = run(installed, "flashinfer", ["python3", "-c", FLASHINFER_KERNELS], keeps_kernels=True)
    print(first)
    assert code == 0
    code, again = run(installed, "flashinfer-again", ["python3", "-c", FLASHINFER_KERNELS], keeps_kernels=True)
    print(again)
    assert code == 0
    assert [line.split()[0] for line in made(first)] == ["fa2", "fa3"]
    assert made(again) == made(first), "nothing is compiled twice"


def made(message: str) -> list[str]:
    """Lines of FLASHINFER_KERNELS with a library and its modification time."""
    return [line for line in message.splitlines() if line.split()[-1].isdecimal()]


def run(installed: InstalledNode, name: str, command: list[str], *, keeps_kernels: bool = False) -> tuple[int, str]:
    """Exit code and output of a restricted pod with this command."""
    container: Object = {
        "name": "main",
        "image": RUNTIME_IMAGE,
        "imagePullPolicy": "Never",
        "command": command,
        "env": [{"name": "HOME", "value": "/tmp"}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "10Gi"}},
        "securityContext": container_security(),
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    volumes: list[Object] = [{"name": "scratch", "emptyDir": {}}]
    if keeps_kernels:
        container["env"] += KERNELS_ENV
        container["volumeMounts"].append({"name": KERNELS, "mountPath": KERNELS_DIRECTORY})
        volumes.append({"name": KERNELS, "persistentVolumeClaim": {"claimName": KERNELS}})
    spec = {
        "restartPolicy": "Never",
        "securityContext": pod_security(fsGroup=USER),
        "containers": [container],
        "volumes": volumes,
    }
    installed.kube.create("pods", {"metadata": {"name": name}, "spec": spec}, RESTRICTED)

    def exit_codes() -> list[int]:
        statuses = installed.kube.get("pods", name, RESTRICTED).get("status", {}).get("containerStatuses", [])
        return [status["state"]["terminated"]["exitCode"] for status in statuses if "terminated" in status["state"]]

    (code,) = wait_for(f"pod {name} to end", exit_codes, timeout_s=COMPILING_S, interval_s=0.5)
    message = installed.kubectl("logs", name, "-n", RESTRICTED)
    installed.kubectl("delete", "pod", name, "-n", RESTRICTED, "--timeout=60s")
    return code, message.strip()
