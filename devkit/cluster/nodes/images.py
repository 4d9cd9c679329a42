"""The project's images, built like in tools/image.sh, with buildah on a bootstrapped Debian, without a registry.

    python -m devkit.cluster.nodes.images

Writes docker archives of the runtime, the operator and the image for empty pods to build/e2e. BALLAST_E2E_VARIANT
selects the runtime: cpu (default), runtime or cuda, like the names of the requirements files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from devkit.cluster.binaries import ROOT
from devkit.cluster.nodes.real import PAUSE_IMAGE, missing_here

BASE_IMAGE = "localhost/ballast-base:slim"
TAG = "e2e"
VARIANT = os.environ.get("BALLAST_E2E_VARIANT", "cpu")
ARCHIVES = ROOT / "build" / "e2e" / VARIANT
RUNTIME_IMAGE = f"localhost/ballast-runtime:{TAG}" + ("" if VARIANT == "runtime" else f"-{VARIANT}")
OPERATOR_IMAGE = f"localhost/ballast-operator:{TAG}"
SUITE = "bookworm"
NOT_IN_SLIM = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
)
"""Paths that Debian's own container image also omits."""
BUILD_TIMEOUT_S = 3600
"""The variants with CUDA take minutes, and longer on a busy machine."""
CERTIFICATES = Path("/etc/ssl/certs")


class Builder:
    """Caches layers in ~/.cache/ballast/images, so that the next build takes seconds."""

    def __init__(self) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = cache / "ballast" / "images"
        self.folder.mkdir(parents=True, exist_ok=True)
        storage = self.folder / "storage.conf"
        state = {"driver": "overlay", "graphroot": self.folder / "storage", "runroot": self.folder / "run"}
        storage.write_text("\n".join(("[storage]", *(f'{name} = "{value}"' for name, value in state.items()), "")))
        self._env = {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage), "BUILDAH_ISOLATION": "chroot"}

    def build_all(self) -> None:
        """Write the docker archives."""
        self._base()
        self._build()
        ARCHIVES.mkdir(parents=True, exist_ok=True)
        for image in (RUNTIME_IMAGE, OPERATOR_IMAGE, PAUSE_IMAGE):
            _say(f"archive of {image}")
            self._save(image)

    def _base(self) -> None:
        if self._exists(BASE_IMAGE) and self._exists(PAUSE_IMAGE):
            return
        _say("base system")
        tree = self.folder / "debian"
        if not (tree / "etc" / "debian_version").exists():
            _run("debootstrap", "--variant=minbase", "--include=python3,ca-certificates", SUITE, str(tree))
        for folder in NOT_IN_SLIM:
            shutil.rmtree(tree / folder, ignore_errors=True)
            (tree / folder).mkdir()
        container = self._buildah("from", "scratch")
        self._buildah("copy", "--quiet", container, str(tree), "/")
        self._buildah("commit", "--quiet", container, BASE_IMAGE)
        self._buildah("config", "--entrypoint", '["/bin/sleep", "infinity"]', "--user", "65535:65535", container)
        self._buildah("commit", "--quiet", "--rm", container, PAUSE_IMAGE)

    def _build(self) -> None:
        _say("the project's images")
        choice = {
            "BASE_IMAGE": BASE_IMAGE,
            "BUILDER": "buildah",
            "BUILD_FLAGS": f"--volume={CERTIFICATES}:{CERTIFICATES}:ro",
            "REQUIREMENTS": f"requirements/{VARIANT}.txt",
            "TAG": TAG,
        }
        _run("tools/image.sh", "images", env={**self._env, **choice})

    def _save(self, image: str) -> None:
        path = ARCHIVES / f"{image.rpartition('/')[2].replace(':', '-')}.tar"
        path.unlink(missing_ok=True)
        self._buildah("push", "--quiet", image, f"docker-archive:{path}:{image}")

    def _exists(self, image: str) -> bool:
        return bool(self._buildah("images", "--quiet", "--filter", f"reference={image}"))

    def _buildah(self, *words: str) -> str:
        return _run("buildah", *words, env=self._env)


def _run(*argv: str, env: Mapping[str, str] = os.environ) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, env=env, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout.strip()


def _say(what: str) -> None:
    print(f"         {what}", flush=True)


def main() -> None:
    """Write the archives, or list what is missing for a node."""
    missing = missing_here()
    if missing:
        sys.exit("the tests on a real node cannot run here; missing:\n  " + "\n  ".join(missing))
    Builder().build_all()


if __name__ == "__main__":
    main()
