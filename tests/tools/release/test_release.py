"""A release is rejected with a reason, or becomes one folder with valid checksums."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from devkit.cluster.binaries import program
from tools.release.__main__ import main
from tools.release.chart import package_chart
from tools.release.source import source_of
from tools.release.version import statements, version_of

ROOT = Path(__file__).resolve().parents[3]
VERSION = version_of(ROOT)
EPOCH = 1900000000
CHANGELOG = f"""# Changelog

## [Unreleased]

## [{VERSION}] - 2030-01-02

- One change.
"""


def git(root: Path, *words: str) -> None:
    settings = ("user.name=A", "user.email=a@example.org", "commit.gpgsign=false", "core.hooksPath=/dev/null")
    flags = [flag for each in settings for flag in ("-c", each)]
    environment = {"GIT_AUTHOR_DATE": f"{EPOCH} +0000", "GIT_COMMITTER_DATE": f"{EPOCH} +0000", "PATH": "/usr/bin:/bin"}
    command = ["git", "-C", str(root), *flags, *words]
    subprocess.run(command, check=True, timeout=60, capture_output=True, env=environment)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the files that state the version, and programs that write artifacts like the real ones."""
    root = tmp_path / "repository"
    for name in {each.path for each in statements(ROOT)}:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    (root / ".gitignore").write_text("build/\n")
    (root / "Makefile").write_text(
        "wheel:\n\tmkdir -p build/dist\n"
        f"\techo $$SOURCE_DATE_EPOCH > build/dist/ballast_serve-{VERSION}-cp311-linux.whl\n"
        f"\techo sdist > build/dist/ballast_serve-{VERSION}.tar.gz\n"
    )
    git(root, "init", "--quiet")
    commit(root)
    return root


def commit(root: Path) -> None:
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "change")


def refused(root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["build", "notes"], root) == 1
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("release: ") for line in lines)
    return [line.removeprefix("release: ") for line in lines]


def test_a_release_is_one_folder_whose_checksums_hold(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "notes"], repository) == 0
    assert main(["build", "wheel"], repository) == 0
    folder = repository / "build/release" / VERSION
    assert {path.name for path in folder.iterdir()} == {
        *("COMMIT", "RELEASE_NOTES.md", "SHA256SUMS"),
        *(f"ballast_serve-{VERSION}-cp311-linux.whl", f"ballast_serve-{VERSION}.tar.gz"),
    }
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    verified = subprocess.run(check, cwd=folder, check=True, timeout=60, capture_output=True, text=True).stdout
    assert verified.count(": OK") == 4
    assert (folder / f"ballast_serve-{VERSION}-cp311-linux.whl").read_text() == f"{EPOCH}\n", "the commit's time"
    assert "- One change." in (folder / "RELEASE_NOTES.md").read_text()
    assert f"ballast_serve-{VERSION}.tar.gz" in capsys.readouterr().out
    (folder / "RELEASE_NOTES.md").write_text("other")
    assert subprocess.run(check, cwd=folder, check=False, timeout=60, capture_output=True).returncode == 1
    assert main(["build", "checksums"], repository) == 0
    assert subprocess.run(check, cwd=folder, check=False, timeout=60, capture_output=True).returncode == 0


def test_uncommitted_changes_are_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "README.md").write_text((repository / "README.md").read_text() + "more\n")
    (repository / "new.py").touch()
    (reason,) = refused(repository, capsys)
    assert reason == "the working tree has uncommitted changes: README.md, new.py; commit or remove them"
    assert not (repository / "build").exists()


def test_a_version_without_a_section_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "CHANGELOG.md").write_text(CHANGELOG.replace(VERSION, "9.9.9"))
    commit(repository)
    (reason,) = refused(repository, capsys)
    assert reason.startswith(f"CHANGELOG.md has no section [{VERSION}]; move the entries of Unreleased to ")


def test_a_file_of_another_version_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = repository / "charts/ballast/Chart.yaml"
    chart.write_text(chart.read_text().replace(f"appVersion: {VERSION}", "appVersion: 9.9.9"))
    commit(repository)
    (reason,) = refused(repository, capsys)
    assert "charts/ballast/Chart.yaml, line 6: states version 9.9.9" in reason
    assert f"run: python -m tools.release bump {VERSION}" in reason


def test_tags_must_agree_with_the_version(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(repository, "tag", "v9.9.9")
    assert refused(repository, capsys) == [
        f"the commit has the tag v9.9.9, but its version is {VERSION}; remove the tag or bump"
    ]
    git(repository, "tag", f"v{VERSION}")
    assert main(["build", "notes"], repository) == 0
    capsys.readouterr()
    (repository / "later").touch()
    commit(repository)
    assert f"version {VERSION} is released: tag v{VERSION} is on another commit; raise the version" in refused(
        repository, capsys
    )


def test_artifacts_of_two_commits_are_not_mixed(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "notes"], repository) == 0
    capsys.readouterr()
    (repository / "later").touch()
    commit(repository)
    (reason,) = refused(repository, capsys)
    assert reason.startswith(f"build/release/{VERSION} has artifacts of commit ")
    assert reason.endswith("; remove the folder")


def oci_archive(path: Path, revision: str) -> None:
    """An OCI archive of an image whose label states `revision`, without layers."""
    config = json.dumps({"config": {"Labels": {"org.opencontainers.image.revision": revision}}})
    manifest = json.dumps({"config": {"digest": "sha256:c"}})
    index = json.dumps({"manifests": [{"digest": "sha256:m"}]})
    with tarfile.open(path, "w") as archive:
        for name, text in (("index.json", index), ("blobs/sha256/m", manifest), ("blobs/sha256/c", config)):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def test_images_of_another_commit_are_refused(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A builder's cache may return the image of an earlier commit."""
    built = tmp_path / "built.tar"
    script = repository / "tools/image.sh"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\ncp {built} "$2/ballast-operator-{VERSION}.oci.tar"\n')
    script.chmod(0o755)
    commit(repository)
    head = source_of(repository).commit[:12]
    for revision, shown in (("0123456789ab", "0123456789ab"), (f"{head}+", rf"{head}\+"), ("", r"\(none\)")):
        oci_archive(built, revision)
        assert main(["build", "images"], repository) == 1
        assert re.search(f"operator-{VERSION}.oci.tar has the label of commit {shown}, not", capsys.readouterr().err)
    assert not (repository / "build/release" / VERSION / "SHA256SUMS").exists()
    oci_archive(built, head)
    assert main(["build", "images"], repository) == 0


def test_an_unknown_part_and_a_failing_command_are_reported(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", "debs"], repository) == 1
    assert "part debs: unknown; parts are notes, chart, wheel, images, sbom and checksums" in capsys.readouterr().err
    (repository / "Makefile").write_text("wheel:\n\tfalse\n")
    commit(repository)
    assert main(["build", "wheel"], repository) == 1
    assert "release: `make --no-print-directory wheel` ended with exit code 2" in capsys.readouterr().err
    assert not (repository / "build/release" / VERSION / "SHA256SUMS").exists(), "incomplete releases have no checksums"
    (repository / "Makefile").write_text("wheel:\n\ttrue\n")
    shutil.rmtree(repository / "build")
    commit(repository)
    assert main(["build", "wheel"], repository) == 1
    assert f"no file ballast_serve-{VERSION}-*.whl" in capsys.readouterr().err


def test_the_packaged_chart_is_the_chart_and_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    packages = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        packages.append(package_chart(program("helm"), ROOT / "charts/ballast", tmp_path / name, EPOCH))
    assert packages[0].name == f"ballast-{VERSION}.tgz"
    assert packages[0].read_bytes() == packages[1].read_bytes()
    with tarfile.open(packages[0]) as package:
        files = {member.name: member for member in package.getmembers()}
        packed = package.extractfile("ballast/Chart.yaml")
        assert packed is not None
        about = yaml.safe_load(packed.read())
    assert (about["version"], about["appVersion"]) == (VERSION, VERSION)
    assert {member.mtime for member in files.values()} == {EPOCH}
    assert {"ballast/values.yaml", "ballast/files/crd/inferenceservices.serving.ballast.dev.yaml"} <= set(files)
    rendered = [program("helm"), "template", "x", packages[0], "--kube-version=1.34.0"]
    shown = subprocess.run(rendered, check=True, timeout=120, capture_output=True, text=True).stdout
    assert f"image: ballast-operator:{VERSION}" in shown.replace('"', "")
