"""Fetch the chat page's third-party files from npm, as packages.json lists them, and write their checksums.

    python -m tools.page.packages [--check]

For a new version, change it in packages.json and run this. With --check nothing is written, and the exit code says
whether the files are those of the registry.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).resolve().parents[2] / "runtime/ballast/server/routes/static/vendor"
LIST = VENDOR / "packages.json"
FETCH_TIMEOUT_S = 120


def main(arguments: list[str]) -> int:
    packages: dict[str, dict[str, Any]] = json.loads(LIST.read_text(encoding="utf-8"))
    published = {name: members(*name) for name in {(each["package"], each["version"]) for each in packages.values()}}
    found = {name: published[each["package"], each["version"]][each["file"]] for name, each in packages.items()}
    for each in packages.values():
        found[each["license_file"]] = published[each["package"], each["version"]]["LICENSE"]
    if arguments == ["--check"]:
        others = [name for name, content in found.items() if not is_here(name, content, packages.get(name))]
        print(
            f"{', '.join(others)}: differ from the published files"
            if others
            else f"{len(found)} files equal the published ones"
        )
        return 1 if others else 0
    for name, content in found.items():
        (VENDOR / name).write_bytes(content)
    for name, each in packages.items():
        each["sha256"] = hashlib.sha256(found[name]).hexdigest()
    LIST.write_text(json.dumps(packages, indent=2) + "\n", encoding="utf-8")
    return 0


def is_here(name: str, content: bytes, listed: dict[str, Any] | None) -> bool:
    """Whether the folder has the published `content`, and the list has its checksum."""
    path = VENDOR / name
    same = path.is_file() and path.read_bytes() == content
    return same and (listed is None or listed.get("sha256") == hashlib.sha256(content).hexdigest())


def members(package: str, version: str) -> dict[str, bytes]:
    """The files of a published package, by their paths in it."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{package}@{version}"]
        subprocess.run(command, cwd=folder, check=True, timeout=FETCH_TIMEOUT_S, stdout=subprocess.DEVNULL)
        [archive] = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            return {
                member.name.partition("/")[2]: file.read()
                for member in tar.getmembers()
                if (file := tar.extractfile(member)) is not None
            }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
