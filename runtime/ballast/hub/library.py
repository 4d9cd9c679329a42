"""`ballast models`: lists the models that were fetched from a hub, and removes them."""

from __future__ import annotations

import shutil
from pathlib import Path

from ballast.errors import ConfigError
from ballast.host.sizes import human
from ballast.hub.naming import choices, is_hub_name
from ballast.hub.store import Store

_PREFIX = "models--"


def listed(cache: Path) -> str:
    """A line a model: its name and commit, and the bytes that it takes."""
    lines = []
    for folder in sorted(cache.glob(f"{_PREFIX}*/snapshots/*")):
        repo = folder.parent.parent.name.removeprefix(_PREFIX).replace("--", "/", 1)
        if is_hub_name(repo):
            lines += [
                f"{repo}:{choice.quant}@{folder.name}  {human(choice.num_bytes)}\n"
                for choice in choices(Store(cache, repo).files(folder.name))
            ]
    return "".join(lines) or f"{cache}: no GGUF model was fetched\n"


def remove(cache: Path, repo: str) -> str:
    """Remove all of a repository, and say how much that was. Raises ConfigError for one that is not there."""
    folder = Store(cache, repo).path
    if not is_hub_name(repo) or ":" in repo or "@" in repo or not folder.is_dir() or folder.is_symlink():
        raise ConfigError("remove", repo, "expected org/repo of a model that `ballast models` lists")
    freed = sum(path.stat().st_size for path in (folder / "blobs").glob("*") if path.is_file())
    shutil.rmtree(folder)
    return f"{repo}: {human(freed)} removed\n"
