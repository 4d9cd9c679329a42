"""The wheel, installed in an environment without the project's folders."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import httpx
import pytest

from ballast.server.routes.chat_page import FILES
from devkit.manifests import objects_of
from devkit.servers.process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 250


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel, and with the dependencies of the test environment."""
    wheels, home = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("home")
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "CMAKE_GENERATOR": "Ninja"}
    build = (str(tools / "uv"), "build", "--quiet", "--wheel", "--no-build-isolation", "--offline")
    subprocess.run(
        [*build, "--python", sys.executable, "-o", str(wheels), str(ROOT)],
        check=True,
        timeout=TIMEOUT_S,
        env=environment,
    )
    venv.create(home, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    # Python reads .pth files only in site-packages, so the editable install in the other environment is not used.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = (str(tools / "uv"), "pip", "install", "--quiet", "--offline", "--no-deps")
    (wheel,) = wheels.glob("*.whl")
    subprocess.run(
        [*install, "--python", str(home / "bin" / "python"), str(wheel)], check=True, timeout=TIMEOUT_S, cwd=home
    )
    return home / "bin"


def output_of(program: Path, *arguments: str) -> str:
    ran = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, check=True, timeout=TIMEOUT_S, cwd=program.parent
    )
    return ran.stdout


def test_it_is_the_wheel_that_runs(installed: Path) -> None:
    found = output_of(
        installed / "python", "-c", "import ballast, ballast._core as core; print(ballast.__file__, core.__file__)"
    )
    assert found.count(str(installed.parent)) == 2


def test_the_bill_of_materials_lists_the_pages_npm_packages(installed: Path) -> None:
    script = str(ROOT / "tools/image/sbom.py")
    bill = json.loads(output_of(installed / "python", script, "ballast-runtime", "1.2.3", str(installed.parent)))
    packages = json.loads((ROOT / "runtime/ballast/server/routes/static/vendor/packages.json").read_text())
    expected = {(each["package"], each["version"]) for each in packages.values()}
    found = [each for each in bill["components"] if each["purl"].startswith("pkg:npm/")]
    assert {(each["name"], each["version"]) for each in found} == expected
    assert [each["purl"] for each in found if each["name"].startswith("@")] == [
        f"pkg:npm/%40{name.removeprefix('@')}@{version}" for name, version in sorted(expected) if name.startswith("@")
    ]


IMPORT_EVERYTHING = """
import importlib, importlib.metadata, json, pkgutil, re, sys

allowed = set(sys.argv[1].split(","))
owners = importlib.metadata.packages_distributions()
foreign = {
    name
    for name, packages in owners.items()
    if not {re.sub("[-_.]+", "-", each).lower() for each in packages} & allowed
}


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in foreign:
            raise ImportError(f"{name} is in no requirement of the runtime or the operator")


sys.meta_path.insert(0, Refuse())
imported = []
for top in ("ballast", "ballast_operator"):
    package = importlib.import_module(top)
    for found in pkgutil.walk_packages(package.__path__, f"{top}."):
        if not found.name.endswith(".__main__"):
            importlib.import_module(found.name)
        imported.append(found.name)
print(json.dumps(imported))
"""
"""Imports every module of the wheel; only packages of the distributions in argv[1] are importable. Prints the names."""


def required(*locks: str) -> set[str]:
    """Names of the distributions in lock files, as PEP 503 writes them, and of the project itself."""
    lines = "\n".join((ROOT / "requirements" / lock).read_text() for lock in locks)
    return {re.sub("[-_.]+", "-", name).lower() for name in re.findall(r"^([\w.-]+)==", lines, re.MULTILINE)} | {
        "ballast-serve"
    }


def test_every_module_imports_with_only_the_requirements_and_no_test_code(installed: Path) -> None:
    allowed = ",".join(sorted(required("runtime.txt", "operator.txt")))
    imported = set(json.loads(output_of(installed / "python", "-c", IMPORT_EVERYTHING, allowed)))
    sources = {
        ".".join(path.relative_to(ROOT / folder).with_suffix("").parts).removesuffix(".__init__")
        for folder in ("runtime", "operator")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert imported == sources - {"ballast", "ballast_operator"} | {"ballast._core"}
    assert not [name for name in imported if "test" in name]


def test_the_wheel_plans_and_answers_without_extras(installed: Path) -> None:
    assert re.fullmatch(r"[\d.]+\n", output_of(installed / "ballast", "--version"))
    assert json.loads(output_of(installed / "ballast", "plan", "--json", "--device", "cpu"))
    requested = (
        "from ballast import LLM; print(LLM(device='cpu').chat([{'role': 'user', 'content': 'What is 12 + 7?'}])[0])"
    )
    assert "19" in output_of(installed / "python", "-c", requested)
    listed = "import importlib.metadata as m; print(*m.requires('ballast-serve'), sep='\\n')"
    required_always = [line for line in output_of(installed / "python", "-c", listed).splitlines() if ";" not in line]
    assert {"fastapi", "numpy"} <= {re.split(r"[^\w.-]", line)[0].partition("==")[0] for line in required_always}


def test_the_operators_custom_resource_comes_with_it(installed: Path) -> None:
    kinds = {document["kind"] for document in objects_of(output_of(installed / "ballast-operator", "crd"))}
    assert kinds == {"CustomResourceDefinition"}


def test_the_built_in_model_answers_and_the_page_is_there(installed: Path) -> None:
    with ServerProcess(python=str(installed / "python")) as server:
        for name in FILES:
            assert httpx.get(server.url + name, timeout=60).status_code == 200, name
        requested = {"messages": [{"role": "user", "content": "What is 12 + 7?"}], "temperature": 0, "max_tokens": 30}
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=requested, timeout=60).json()
        assert "19" in reply["choices"][0]["message"]["content"]
