"""The parts of a release. Each part writes its artifacts into the release's folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.release.archive import revision_of
from tools.release.chart import package_chart
from tools.release.notes import release_notes
from tools.release.source import Source

VARIANTS = ("requirements/runtime.txt", "requirements/cpu.txt", "requirements/cuda.txt")
"""The runtime images of a release. REQUIREMENTS in the environment selects others, separated by spaces."""
TIMEOUT_S = 4 * 3600
"""Limit of one command. Images with CUDA's libraries take the longest."""


class MissingArtifactError(RuntimeError):
    """A command ended successfully, but its artifact does not exist."""


class OtherCommitError(RuntimeError):
    """An image is not the one of the commit that is released."""


def write_wheel(source: Source) -> None:
    """The wheel for this Python and the source distribution."""
    _run(source, "make", "--no-print-directory", "wheel")
    for pattern in (f"ballast_serve-{source.version}-*.whl", f"ballast_serve-{source.version}.tar.gz"):
        for path in _found(source.root / "build" / "dist", pattern):
            shutil.copy2(path, source.folder)


def write_images(source: Source) -> None:
    """The operator's image and the variants of the runtime's, as OCI archives."""
    _run(source, "tools/image.sh", "archives", str(source.folder), REQUIREMENTS=" ".join(_variants()))
    _found(source.folder, f"ballast-operator-{source.version}.oci.tar")
    for archive in _found(source.folder, "*.oci.tar"):
        revision = revision_of(archive)
        if not revision or not source.commit.startswith(revision):
            text = f"{archive.name} has the label of commit {revision or '(none)'}, not of {source.commit[:12]}"
            raise OtherCommitError(f"{text}; remove the builder's cache and build the images again")


def write_sbom(source: Source) -> None:
    """The contents of each image, as CycloneDX."""
    for variant in _variants():
        _run(source, "tools/image.sh", "sbom", REQUIREMENTS=variant)
        suffix = f"-{Path(variant).stem}".replace("-runtime", "")
        for image, name in (("runtime", f"{source.version}{suffix}"), ("operator", source.version)):
            (bill,) = _found(source.root / "build" / "sbom", f"ballast-{image}.cdx.json")
            shutil.copyfile(bill, source.folder / f"ballast-{image}-{name}.cdx.json")


def write_chart(source: Source) -> None:
    """The Helm chart as a package."""
    printed = _run(source, "tools/cluster-binaries.sh", "charts", is_output_kept=True)
    package_chart(Path(printed.strip()) / "helm", source.root / "charts" / "ballast", source.folder, source.epoch)
    _found(source.folder, f"ballast-{source.version}.tgz")


def write_notes(source: Source) -> None:
    """The changes of this version."""
    changelog = (source.root / "CHANGELOG.md").read_text(encoding="utf-8")
    (source.folder / "RELEASE_NOTES.md").write_text(release_notes(changelog, source.version), encoding="utf-8")


PARTS: Mapping[str, Callable[[Source], None]] = {
    "notes": write_notes,
    "chart": write_chart,
    "wheel": write_wheel,
    "images": write_images,
    "sbom": write_sbom,
}
"""By name, the cheap ones first."""


def _variants() -> list[str]:
    return os.environ.get("REQUIREMENTS", "").split() or list(VARIANTS)


def _run(source: Source, *command: str, is_output_kept: bool = False, **variables: str) -> str:
    """Run a command of the repository with the commit's time. TAG is removed: image tags state the version."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TAG", "MAKEFLAGS", "MFLAGS")}
    done = subprocess.run(
        command,
        cwd=source.root,
        env={**environment, "SOURCE_DATE_EPOCH": str(source.epoch), **variables},
        stdout=subprocess.PIPE if is_output_kept else None,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return done.stdout or ""


def _found(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise MissingArtifactError(f"{folder}: no file {pattern}")
    return found
