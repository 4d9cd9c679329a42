"""Write the generated files of the chart: permissions, dashboards, and a README from comments.

    python -m tools.chart [--check]

With --check nothing is written. The exit code says whether the files are up to date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ballast.version import __version__
from ballast_operator.rbac import CLUSTER_RULES, HOME_RULES, WATCHED_RULES
from tools.dashboards import DASHBOARDS, to_json
from tools.pages import NOTE, is_file_with, table

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "ballast"
MADE = "# Made by tools/chart.py; change "


def main(arguments: list[str]) -> int:
    expected = {
        "files/rbac.yaml": permissions(),
        **{
            f"dashboards/{name}.json": json.dumps(to_json(board), indent=1) + "\n" for name, board in DASHBOARDS.items()
        },
        "README.md": "\n".join((NOTE, *readme(), "")),
    }
    check_version()
    if arguments == ["--check"]:
        old = [name for name, text in expected.items() if not is_file_with(CHART / name, text)]
        if old:
            print(f"charts/ballast/: {', '.join(old)} are out of date; run: make docs-reference")
        return 1 if old else 0
    for name, text in expected.items():
        (CHART / name).parent.mkdir(exist_ok=True)
        (CHART / name).write_text(text, encoding="utf-8")
    return 0


def check_version() -> None:
    """Check that chart, images and package have the same version, since they are released together."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    if (chart["version"], chart["appVersion"]) != (__version__, __version__):
        sys.exit(f"charts/ballast/Chart.yaml: version and appVersion must be {__version__}, as in version.py")


def permissions() -> str:
    parts = {"watched": WATCHED_RULES, "cluster": CLUSTER_RULES, "home": HOME_RULES}
    return f"{MADE}operator/ballast_operator/rbac.py.\n" + yaml.safe_dump(
        {name: [rule.to_api() for rule in rules] for name, rules in parts.items()}, sort_keys=False
    )


# --- README -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """One documented value."""

    path: str
    default: Any
    meaning: str


def readme() -> Iterator[str]:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    yield "# Helm chart `ballast`"
    yield ""
    versions = f"Version {chart['version']}, for Kubernetes {chart['kubeVersion'].removesuffix('-0')}."
    yield f"{chart['description']} {versions}"
    yield ""
    yield "```"
    yield "helm install ballast charts/ballast --namespace ballast-system --create-namespace --wait"
    yield "```"
    yield ""
    yield "Quick start: `docs/quickstart-kubernetes.md`. Upgrade and uninstall: `docs/kubernetes/upgrade.md`."
    yield "`values.schema.json` rejects wrong values and names the key."
    yield ""
    yield "As a dependency of another chart it supports `condition: ballast.enabled` and the values in `global`."
    yield ""
    yield "## Values"
    yield ""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    rows = [(f"`{value.path}`", f"`{json.dumps(value.default)}`", value.meaning) for value in values(text)]
    yield from table(("value", "default", "meaning"), rows)


def values(text: str) -> Iterable[Value]:
    """Values with a comment `# -- …` above them. A value without one raises SystemExit with its name."""
    defaults = yaml.safe_load(text)
    found: list[Value] = []
    parents: list[str] = []
    meaning: list[str] = []
    for line in text.splitlines():
        if comment := re.fullmatch(r"\s*# ?(-- )?(.*)", line):
            meaning = [comment[2]] if comment[1] else [*meaning, comment[2]] if meaning else []
        elif key := re.match(r"( *)([A-Za-z]+):", line):
            depth = len(key[1]) // 2
            parents = [*parents[:depth], key[2]]
            if meaning:
                found.append(Value(".".join(parents), lookup(defaults, parents), " ".join(meaning)))
            meaning = []
    missing = [path for path in leaves(defaults) if not any(f"{path}.".startswith(f"{v.path}.") for v in found)]
    if missing:
        sys.exit(f"charts/ballast/values.yaml: no comment `# -- ...` above {', '.join(missing)}")
    return found


def lookup(tree: Any, path: list[str]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
