"""The built-in model's knowledge about Ballast: every option, command, file and path in it exists."""

import re
from pathlib import Path

import pytest

from ballast._core import kernels
from ballast.cli import _parser
from ballast.config.options import OPTIONS
from ballast.server.http.middleware import IGNORED_FIELDS_HEADER
from devkit.manifests import objects_of
from tools.tiny_model.corpus.facts import facts

ROOT = Path(__file__).parents[3]
SAID = [answer for fact in facts() for answer in (*fact.say, *fact.say_zh)]
DEFAULTS = {opt.name: opt.default for opt in OPTIONS}
COMMANDS = _parser()[1].choices


def named(pattern):
    """Names that the answers mention, without duplicates."""
    return sorted({match for answer in SAID for match in re.findall(pattern, answer)})


def test_the_options_are_those_of_the_commands():
    taken = {option for command in COMMANDS.values() for option in re.findall(r"--\w+", command.format_help())}
    assert len(named(r"--\w+")) > 15
    assert set(named(r"--\w+")) <= taken


def test_the_commands_are_there():
    assert set(named(r"(?:[Rr]un |运行 |^)ballast ([a-z][a-z-]+)")) <= set(COMMANDS)
    assert {"serve", "pull", "models", "batch"} <= set(named(r"ballast ([a-z-]+)"))


def test_the_targets_of_make_are_there():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(named(r"make ([a-z-]+)")) <= set(targets)


@pytest.mark.parametrize("path", named(r"\b((?:docs|csrc|runtime)/[\w./-]*\w)"))
def test_a_file_is_there(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("path", named(r"(?<![\w.])/(?:v1/[\w/]+|livez|readyz|metrics|debug/\w+)"))
def test_an_endpoint_is_there(path):
    assert re.search(rf"`(GET|POST) {path}`", (ROOT / "docs/reference/endpoints.md").read_text())


@pytest.mark.parametrize("variable", named(r"BALLAST_[A-Z]\w+"))
def test_an_environment_variable_is_read(variable):
    assert variable == "BALLAST_CPU_ISA" or variable.removeprefix("BALLAST_").lower() in DEFAULTS


def test_defaults_are_those_of_the_options():
    stated = dict(match for match in named(r"(\w+) is (\d+)(?: tokens)? by default"))
    assert stated.keys() == {"chunk_size", "max_batch_size", "max_queue"}
    assert all(str(DEFAULTS[name]) == value for name, value in stated.items())
    assert DEFAULTS["max_new_tokens"] is DEFAULTS["cache_lens"] is None
    assert f"The default port is {DEFAULTS['port']}." in SAID
    assert DEFAULTS["host"] == "127.0.0.1"


def test_the_documented_number_of_types_is_supported():
    assert len(kernels.formats()) > 25


def test_the_architectures_are_those_of_the_reference():
    (models,) = [answer for answer in SAID if answer.startswith("Ballast serves DeepSeek V2")]
    served = (ROOT / "docs/reference/models.md").read_text()
    assert all(name in served for name in re.findall(r"V\d|R\d|Kimi K2|Qwen3|GLM-4\.5|4\.7", models))


def test_the_header_has_its_name():
    assert any(IGNORED_FIELDS_HEADER in answer for answer in SAID)


def test_the_custom_resource_has_its_names():
    (crd,) = objects_of((ROOT / "manifests/crd/inferenceservices.serving.ballast.dev.yaml").read_text())
    assert any(crd["spec"]["names"]["shortNames"][0] in answer for answer in SAID)
    served = [version["name"] for version in crd["spec"]["versions"] if version["served"]]
    assert any(f"{crd['spec']['group']}, version {name}." in answer for answer in SAID for name in served)
