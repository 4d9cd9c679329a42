"""The layers that docs/architecture.md shows."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def drawn_layers() -> dict[str, list[list[list[str]]]]:
    """Map each part of the source to its chains. A chain is a list of layers, highest first; a layer is a list of
    names."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    drawing = re.search(r"^## Layers\n.*?^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert drawing is not None
    layers: dict[str, list[list[list[str]]]] = {}
    for line in re.sub(r"\n +>", " >", drawing[1]).splitlines():
        part, chain = line.split(maxsplit=1)
        layers.setdefault(part, []).append([re.split(r",\s*", layer.strip()) for layer in chain.split(">")])
    return layers
