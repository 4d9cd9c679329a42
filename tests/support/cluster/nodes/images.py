"""The project's images, built from its Dockerfile by buildah on a bootstrapped Debian, without any registry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.cluster.binaries import ROOT
from support.cluster.nodes.real import PAUSE_IMAGE, missing_here

BASE_IMAGE = "localhost/ballast-base:slim"
RUNTIME_IMAGE = "localhost/ballast-runtime:e2e"
OPERATOR_IMAGE = "localhost/ballast-operator:e2e"
SUITE = "bookworm"
NOT_IN_SLIM = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
)
"""What Debian's own image for containers leaves out, too."""
BUILD_TIMEOUT_S = 1500
CERTIFICATES = Path("/etc/ssl/certs")


class Builder:
    """Layers are kept in ~/.cache/ballast/images, so that the next build takes seconds."""

    def __init__(self) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = cache / "ballast" / "images"
        self.folder.mkdir(parents=True, exist_ok=True)

    def build_all(self, archives: Path) -> list[Path]:
        """Docker archives of the runtime, the operator and the image of empty pods."""
        self._base()
        self._build("runtime", RUNTIME_IMAGE)
        self._build("operator", OPERATOR_IMAGE)
        return [self._save(image, archives) for image in (RUNTIME_IMAGE, OPERATOR_IMAGE, PAUSE_IMAGE)]

    def _base(self) -> None:
        if self._exists(BASE_IMAGE) and self._exists(PAUSE_IMAGE):
            return
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

    def _build(self, target: str, image: str) -> None:
        arguments = {"BASE_IMAGE": BASE_IMAGE, "REQUIREMENTS": "requirements/cpu.txt"}
        if "PIP_CERT" in os.environ:
            arguments["PIP_CERT"] = os.environ["PIP_CERT"]
        flags = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        certificates = f"--volume={CERTIFICATES}:{CERTIFICATES}:ro"
        self._buildah("bud", "--layers", f"--target={target}", *flags, certificates, f"--tag={image}", str(ROOT))

    def _save(self, image: str, folder: Path) -> Path:
        path = folder / f"{image.rpartition('/')[2].replace(':', '-')}.tar"
        path.unlink(missing_ok=True)
        self._buildah("push", "--quiet", image, f"docker-archive:{path}:{image}")
        return path

    def _exists(self, image: str) -> bool:
        return bool(self._buildah("images", "--quiet", "--filter", f"reference={image}"))

    def _buildah(self, *words: str) -> str:
        state = (f"--root={self.folder / 'storage'}", f"--runroot={self.folder / 'run'}")
        return _run("buildah", *state, *words)


def _run(*argv: str) -> str:
    env = {**os.environ, "STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, env=env, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout.strip()


def main() -> None:
    """Build the archives into the folder that is named as the only argument, or say what is missing for a node."""
    missing = missing_here()
    if missing:
        sys.exit("the tests on a real node cannot run here; missing:\n  " + "\n  ".join(missing))
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    Builder().build_all(folder)


if __name__ == "__main__":
    main()
