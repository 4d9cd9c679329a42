"""The chart, by the real helm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from devkit.cluster.binaries import ROOT, program
from devkit.manifests import objects_of

CHART = ROOT / "charts" / "ballast"
COMMAND_TIMEOUT_S = 240


class HelmError(Exception):
    """helm failed; the message is its error output."""


class Helm:
    """As the user of a kubeconfig; without one, what needs no cluster."""

    def __init__(self, folder: Path, kubeconfig: Path | None = None) -> None:
        homes = {f"HELM_{name}_HOME": str(folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        self._env = {**os.environ, **homes, "KUBECONFIG": str(kubeconfig or os.devnull)}

    def __call__(self, *words: str | Path) -> str:
        """Run helm and return its standard output."""
        argv = [str(program("helm")), *map(str, words)]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, env=self._env, check=False
        )
        if done.returncode:
            raise HelmError(f"{done.stdout}{done.stderr}")
        return done.stdout

    def template(self, *flags: str | Path, release: str = "ballast") -> list[dict[str, Any]]:
        """The rendered objects of a release, by default in `ballast-system`."""
        text = self("template", release, CHART, "--namespace=ballast-system", *flags)
        return objects_of(text)
