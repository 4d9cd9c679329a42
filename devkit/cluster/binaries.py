"""Paths of the cluster's programs: from KUBEBUILDER_ASSETS, or built by tools/cluster-binaries.sh."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOOKUP_TIMEOUT_S = 60
PARTS = {
    **dict.fromkeys(("kubelet", "kube-proxy", "device-plugin"), "node"),
    "helm": "charts",
    "health": "gitops",
    **dict.fromkeys(("versitygw", "registry"), "stores"),
}
"""Programs outside the control plane, with the names of their groups in tools/cluster-binaries.sh."""


def program(name: str) -> Path:
    """Path of `name`, for example "kube-apiserver"."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (Path(assets) / name).exists():
        return Path(assets) / name
    if name in ("prometheus", "promtool"):
        return Path(_printed(ROOT / "tools" / "prometheus.sh", "--cached")) / name
    return built(PARTS.get(name, "controlplane")) / name


@cache
def built(part: str) -> Path:
    """Folder with a group's programs. If they are not built, RuntimeError names the command to run."""
    return Path(_printed(ROOT / "tools" / "cluster-binaries.sh", part, "--cached"))


def _printed(script: Path, *words: str) -> str:
    done = subprocess.run([script, *words], capture_output=True, text=True, timeout=LOOKUP_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout.strip()
