"""An image's bill of materials, tested with this environment."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_distribution_is_listed_once_with_its_version():
    command = [sys.executable, ROOT / "tools/image/sbom.py", "ballast-operator", "1.2.3", ROOT / ".venv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"] == {"type": "container", "name": "ballast-operator", "version": "1.2.3"}
    purls = [component["purl"] for component in bill["components"]]
    assert len(purls) == len(set(purls))
    assert f"pkg:pypi/kopf@{version('kopf')}" in purls
    assert f"pkg:pypi/pydantic-core@{version('pydantic-core')}" in purls
    assert all(component["version"] for component in bill["components"])
