"""The kubelet validates the sample of its configuration, before it connects to a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from devkit.cluster.binaries import ROOT, program

SAMPLE = ROOT / "manifests/samples/nodes/kubelet.yaml"


def judged(text: str, folder: Path) -> str:
    """The kubelet's output for this configuration before it exits."""
    config = folder / "kubelet.yaml"
    config.write_text(text)
    argv = [program("kubelet"), f"--config={config}", f"--root-dir={folder}", f"--kubeconfig={folder / 'none'}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0, "there is no cluster to join"
    return done.stderr


def test_the_sample_is_valid(tmp_path: Path) -> None:
    message = judged(SAMPLE.read_text(), tmp_path)
    assert "invalid kubeconfig" in message, "the kubelet must accept the configuration first"
    assert "strict decoding" not in message


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("topologyManagerScope: pod", "topologyManagerScope: pods", "topologyManagerScope"),
        ("topologyManagerScope: pod", "topologyScope: pod", "strict decoding"),
    ],
)
def test_the_kubelet_check_detects_a_mistake(tmp_path: Path, old: str, new: str, named: str) -> None:
    text = SAMPLE.read_text()
    assert old in text
    assert named in judged(text.replace(old, new), tmp_path)
