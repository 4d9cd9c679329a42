"""What people install: the wheel, in an environment in which the project's folders are not."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import httpx
import pytest
import yaml

from ballast.server.page import FILES
from ballast.testing.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 250


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel, and with the dependencies of the one that runs the tests."""
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
    # Files of this kind are read in a folder of packages alone, so the editable install in the other one stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = (str(tools / "uv"), "pip", "install", "--quiet", "--offline", "--no-deps")
    (wheel,) = wheels.glob("*.whl")
    subprocess.run(
        [*install, "--python", str(home / "bin" / "python"), str(wheel)], check=True, timeout=TIMEOUT_S, cwd=home
    )
    return home / "bin"


def said(program: Path, *arguments: str) -> str:
    ran = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, check=True, timeout=60, cwd=program.parent
    )
    return ran.stdout


def test_it_is_the_wheel_that_runs(installed: Path) -> None:
    found = said(
        installed / "python", "-c", "import ballast, ballast._core as core; print(ballast.__file__, core.__file__)"
    )
    assert found.count(str(installed.parent)) == 2


def test_the_operators_custom_resource_comes_with_it(installed: Path) -> None:
    kinds = {document["kind"] for document in yaml.safe_load_all(said(installed / "ballast-operator", "crd"))}
    assert kinds == {"CustomResourceDefinition"}


def test_the_built_in_model_answers_and_the_page_is_there(installed: Path) -> None:
    with ServerProcess(python=str(installed / "python")) as server:
        for name in FILES:
            assert httpx.get(server.url + name, timeout=60).status_code == 200, name
        asked = {"messages": [{"role": "user", "content": "What is 12 + 7?"}], "temperature": 0, "max_tokens": 30}
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60).json()
        assert "19" in reply["choices"][0]["message"]["content"]
