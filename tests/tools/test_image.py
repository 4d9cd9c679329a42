"""How images are named, built and trimmed; make e2e and make e2e-gpu-image build real ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from ballast.version import __version__ as VERSION
from ballast_operator.child_options import ChildOptions
from tools.image import trim

ROOT = Path(__file__).resolve().parents[2]


def image(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """image.sh with a docker that only records its arguments, in the folder's `calls`, and copies the Dockerfile."""
    docker = folder / "docker"
    docker.write_text(
        f'#!/bin/sh\n[ "$1" = info ] || echo "$@" >> {folder}/calls\n'
        f'while [ $# -gt 1 ]; do [ "$1" != --file ] || cp "$2" {folder}/Dockerfile; shift; done\n'
    )
    docker.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("TAG", "REQUIREMENTS", "BUILDER")}
    env = {**kept, "PATH": f"{folder}:{os.environ['PATH']}", **environment}
    return subprocess.run(
        [ROOT / "tools/image.sh", *words], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def built(folder: Path) -> list[tuple[str, str]]:
    """The tags that were built, each with the requirements inside."""
    found = []
    for call in (folder / "calls").read_text().splitlines():
        tag = re.search(r"--tag (\S+)", call)
        requirements = re.search(r"REQUIREMENTS=(\S+)", call)
        assert tag is not None
        found.append((tag[1], requirements[1] if requirements else ""))
    return found


def test_images_are_built_with_the_names_of_the_chart(tmp_path: Path) -> None:
    assert image(tmp_path, "images").returncode == 0
    assert built(tmp_path) == [
        (f"ballast-runtime:{VERSION}", "requirements/runtime.txt"),
        (f"ballast-runtime:{VERSION}-cpu", "requirements/cpu.txt"),
        (f"ballast-operator:{VERSION}", ""),
    ]


def test_labels_have_the_version_and_the_commit_as_text(tmp_path: Path) -> None:
    """A cached label with a variable would keep the values of an earlier build."""
    assert image(tmp_path, "images").returncode == 0
    describe = ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]
    revision = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    written = (tmp_path / "Dockerfile").read_text()
    assert re.findall(r'image\.(?:version|revision)="(.*)"', written) == [VERSION, revision] * 2
    labels = {"${VERSION}": VERSION, "${REVISION}": revision}
    expected = (ROOT / "Dockerfile").read_text()
    for variable, value in labels.items():
        expected = expected.replace(variable, value)
    assert written == expected


def test_the_operator_uses_images_of_its_version_by_default() -> None:
    assert ChildOptions().runtime_image == f"ballast-runtime:{VERSION}"
    assert f"image: ballast-operator:{VERSION}\n" in (ROOT / "manifests/operator/operator.yaml").read_text()


def test_a_variant_is_named_after_its_requirements(tmp_path: Path) -> None:
    assert image(tmp_path, "images", REQUIREMENTS="requirements/cuda.txt", TAG="next").returncode == 0
    assert built(tmp_path) == [("ballast-runtime:next-cuda", "requirements/cuda.txt"), ("ballast-operator:next", "")]


def test_unbuildable_variants_are_rejected_by_name(tmp_path: Path) -> None:
    refused = image(tmp_path, "images", REQUIREMENTS="requirements/gpu.txt")
    assert refused.returncode == 1
    assert "requirements/gpu.txt, which is not there" in refused.stderr
    assert "requirements/cuda.txt" in refused.stderr
    nowhere = image(tmp_path, "images", BUILDER="no-such-builder")
    assert "none of no-such-builder works here" in nowhere.stderr
    assert not (tmp_path / "calls").exists()


def test_files_for_another_python_are_reported_and_the_others_compiled(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "fine.py").write_text("x = 1\n")
    (package / "newer.py").write_text("def f[T](: pass\n")
    compiled = subprocess.run(
        [sys.executable, ROOT / "tools/image/compile.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert compiled.stderr.splitlines() == [
        f"compile: left out, not valid in this Python version: {package / 'newer.py'}"
    ]
    assert [path.name.partition(".")[0] for path in (package / "__pycache__").iterdir()] == ["fine"]


def test_errors_other_than_syntax_errors_end_the_build(tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text("x = 1\n")
    (tmp_path / "__pycache__").touch()
    command = [sys.executable, ROOT / "tools/image/compile.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "__pycache__" in done.stderr


def test_our_own_packages_are_compiled_without_exception() -> None:
    lines = [line.removesuffix(" \\") for line in (ROOT / "Dockerfile").read_text().splitlines()]
    for own in ("/opt/ballast/lib/python3*/site-packages/ballast", "/opt/ballast/packages"):
        assert f" && python3 -m compileall -q --invalidation-mode unchecked-hash {own}" in lines


PROBE = "import sys; print(sys.flags.isolated, sys.flags.dont_write_bytecode, sys.stdout.write_through)"


def test_an_isolated_program_loads_nothing_that_a_variable_names(tmp_path: Path) -> None:
    programs, evil = tmp_path / "bin", tmp_path / "evil"
    programs.mkdir()
    evil.mkdir()
    (evil / "sitecustomize.py").write_text("print('code of a volume')\n")
    program, other = programs / "ballast", programs / "tool"
    program.write_text(f"#!{sys.executable}\n{PROBE}\n")
    program.chmod(0o755)
    other.write_text("#!/bin/sh\n")
    environment = {"PYTHONPATH": str(evil)}

    def printed() -> list[str]:
        done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.splitlines()

    assert printed() == ["code of a volume", "0 0 False"]
    isolate: list[str | Path] = [sys.executable, ROOT / "tools/image/isolate.py", programs]
    subprocess.run(isolate, timeout=60, check=True)
    assert printed() == ["1 1 True"]
    assert other.read_text() == "#!/bin/sh\n"
    empty = subprocess.run([*isolate[:2], evil], capture_output=True, text=True, timeout=60, check=False)
    assert (empty.returncode, empty.stderr) == (1, f"isolate: {evil} holds no Python program\n")


def test_the_programs_of_both_images_are_isolated() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    at_wheel = next(at for at, line in enumerate(lines) if line.startswith("RUN") and "/wheels/*.whl" in line)
    assert " && python3 tools/image/isolate.py /opt/ballast/bin" in lines[at_wheel:]
    (operator,) = [line for line in lines if "-m ballast_operator" in line]
    assert "/opt/ballast/bin/python3 -IBu -m ballast_operator" in operator


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The packages of a virtual environment in which each removal pattern matches one file."""
    venv.create(tmp_path, with_pip=False)
    (found,) = tmp_path.glob("lib/python3*/site-packages")
    for folder, patterns in trim.NEVER_LOADED.items():
        for pattern in patterns:
            path = found / folder / pattern.replace("*", "x")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    for package in ("torch", "triton"):
        (found / package / "__init__.py").touch()
    for name in trim.UNSTRIPPED:
        library(found / name)
    return found


def library(path: Path, *linked_with: Path) -> Path:
    """A shared library with debug symbols."""
    flags = ("-g", "-shared", "-fPIC", f"-Wl,--no-as-needed,-soname,{path.name}")
    command = ["c++", *flags, "-x", "c++", "-o", path, "-", "-x", "none", *linked_with]
    subprocess.run(command, input="int f() { return 1; }", text=True, timeout=60, check=True)
    return path


def trimmed(site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools/image/trim.py", site.parents[2]]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_files_that_are_never_loaded_are_removed_and_the_rest_imports(site: Path) -> None:
    with_symbols = (site / trim.UNSTRIPPED[0]).stat().st_size
    done = trimmed(site)
    assert done.returncode == 0, done.stderr
    left = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    assert left == {"torch/__init__.py", "triton/__init__.py", *trim.UNSTRIPPED}
    assert (site / trim.UNSTRIPPED[0]).stat().st_size < with_symbols
    (site / "torch").rename(site / "not-torch")
    assert "nothing is triton/" in trimmed(site).stderr, "a pattern without a match is reported"


def test_libraries_linked_by_others_are_not_removed(site: Path) -> None:
    needed = library(site / "torch/lib/libtorch_cuda_linalg.so")
    library(site / "torch/lib/libtorch.so", needed)
    done = trimmed(site)
    assert done.returncode != 0
    assert "torch/lib/libtorch.so stays" in done.stderr
    assert "libtorch_cuda_linalg.so" in done.stderr


def test_a_package_that_no_longer_imports_ends_the_build(site: Path) -> None:
    (site / "torch/__init__.py").write_text("import torch.include.missing\n")
    assert trimmed(site).returncode != 0


def test_an_environment_without_torch_is_not_changed(tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False)
    (site,) = tmp_path.glob("lib/python3*/site-packages")
    assert trimmed(site).returncode == 0
