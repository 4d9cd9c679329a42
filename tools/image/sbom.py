"""Print the contents of an image as CycloneDX 1.6: the Python distributions in /opt/ballast, the chat page's npm
packages, and the system's packages.

The image's own Python runs it, with only the standard library:  python3 sbom.py NAME VERSION
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

Component = dict[str, object]

FIELDS = ("binary:Package", "Version", "Architecture", "source:Package")


def main(name: str, version: str, *folders: str) -> None:
    components = [*python_components(folders), *page_components(folders), *debian_components()]
    found = sorted(components, key=lambda part: str(part["purl"]))
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": version}},
        "components": found,
    }
    json.dump(document, sys.stdout, indent=1)
    print()


def site_packages(folders: Iterable[str]) -> list[str]:
    return [str(path) for folder in folders for path in Path(folder).glob("lib/python3*/site-packages")]


def page_components(folders: Iterable[str]) -> Iterator[Component]:
    """The npm packages of the chat page in the server's wheel below these folders."""
    for folder in site_packages(folders):
        for listed in Path(folder).glob("ballast/server/routes/static/vendor/packages.json"):
            files = json.loads(listed.read_text(encoding="utf-8")).values()
            packages = {(each["package"], each["version"], each["license"]) for each in files}
            for name, version, licence in sorted(packages):
                purl = f"pkg:npm/{name.replace('@', '%40')}@{version}"
                licences = [{"expression": licence}]
                yield {"type": "library", "name": name, "version": version, "purl": purl, "licenses": licences}


def python_components(folders: Iterable[str]) -> Iterator[Component]:
    """The distributions below these folders. Without folders, those of the running Python."""
    where = site_packages(folders)
    for found in distributions(path=where) if where else distributions():
        name = found.metadata["Name"]
        yield {
            "type": "library",
            "name": name,
            "version": found.version,
            "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{found.version}",
            **license_of(found),
        }


def license_of(found: Distribution) -> Component:
    """The license that the package declares: an expression, or free text."""
    declared = found.metadata.json
    if expression := declared.get("license_expression"):
        return {"licenses": [{"expression": expression}]}
    words = str(declared.get("license", "")).splitlines()
    return {"licenses": [{"license": {"name": words[0]}}]} if words and words[0] else {}


def debian_components() -> Iterator[Component]:
    """The packages of dpkg. Empty on systems without it."""
    form = "\t".join(f"${{{field}}}" for field in FIELDS) + "\n"
    try:
        listed = subprocess.run(
            ["dpkg-query", "--show", f"--showformat={form}"], capture_output=True, text=True, timeout=60, check=True
        )
    except FileNotFoundError:
        return
    release = platform.freedesktop_os_release()
    for line in listed.stdout.splitlines():
        package, version, architecture, source = line.split("\t")
        name = package.partition(":")[0]
        distro = f"{release['ID']}-{release.get('VERSION_ID', 'unstable')}"
        yield {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:deb/{release['ID']}/{name}@{version}?arch={architecture}&distro={distro}&source={source}",
        }


if __name__ == "__main__":
    main(*sys.argv[1:])
