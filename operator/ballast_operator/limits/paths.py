"""Whether a path lies below allowed or forbidden folders. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable


def is_below(path: str, roots: Iterable[str]) -> bool:
    """Whether a path is one of the roots or lies below one, however they are written."""
    normal = _normal(path)
    return any(normal == root or normal.startswith(f"{root.rstrip('/')}/") for root in map(_normal, roots))


def _normal(path: str) -> str:
    return posixpath.normpath(re.sub("/+", "/", path))  # normpath keeps two slashes at the beginning
