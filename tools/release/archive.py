"""The commit that an image states, read from its OCI archive."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

_LABEL = "org.opencontainers.image.revision"


def revision_of(archive: Path) -> str:
    """The commit in the labels of the image, abbreviated; a `+` at the end means uncommitted changes."""
    with tarfile.open(archive) as files:

        def read(name: str) -> dict[str, Any]:
            file = files.extractfile(name)
            if file is None:
                raise ValueError(f"{archive.name}: {name} is not a file")
            found: dict[str, Any] = json.load(file)
            return found

        def blob(descriptor: dict[str, Any]) -> dict[str, Any]:
            return read("blobs/" + descriptor["digest"].replace(":", "/"))

        document = read("index.json")
        while "manifests" in document:
            document = blob(document["manifests"][0])
        labels = blob(document["config"])["config"].get("Labels") or {}
    return str(labels.get(_LABEL, ""))
