"""Other projects also have a kind InferenceService: each is found by its full name."""

from __future__ import annotations

import subprocess
from pathlib import Path

from devkit.cluster.binaries import program
from devkit.cluster.cluster import Cluster
from devkit.cluster.definitions import KSERVE, LLMKUBE, OME
from devkit.cluster.kube import Kube
from devkit.cluster.service.operator import OperatorProcess
from devkit.cluster.service.specs import service, wait_ready


def test_bisvc_is_ours_and_isvc_is_not(
    cluster: Cluster, operator: OperatorProcess, kube: Kube, namespace: str, tmp_path: Path
) -> None:
    def kubectl(*words: str) -> str:
        config = f"--kubeconfig={cluster.control_plane.kubeconfig}"
        argv = [program("kubectl"), config, f"--cache-dir={tmp_path}", f"--namespace={namespace}", *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout

    with cluster.kinds(KSERVE, LLMKUBE, OME):
        for other in (KSERVE, LLMKUBE, OME):
            group, version = other["spec"]["group"], other["spec"]["versions"][0]["name"]
            body = {"apiVersion": f"{group}/{version}", "kind": "InferenceService"}
            file = tmp_path / f"{group}.yaml"
            file.write_text(f"{body | {'metadata': {'name': 'theirs'}, 'spec': {'model': group}}}")
            kubectl("apply", "-f", str(file))
        kube.apply("inferenceservices", service("ours"), namespace)
        wait_ready(kube, namespace, "ours")

        ours = "inferenceservice.serving.ballast.dev/ours"
        assert kubectl("get", "bisvc", "-o", "name").split() == [ours]
        assert kubectl("get", "inferenceservices.serving.ballast.dev", "-o", "name").split() == [ours]
        assert kubectl("get", "ballast", "-o", "name").split() == [ours], "the category lists only our objects"
        theirs = kubectl("get", "isvc", "-o", "name").split()
        assert len(theirs) == 1
        assert theirs[0].endswith("/theirs"), "the API server chooses which kind the short name means; never ours"
        assert kubectl("wait", "--for=condition=Ready", "bisvc/ours", "--timeout=30s")
    assert operator.is_running
