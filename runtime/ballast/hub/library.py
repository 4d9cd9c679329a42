"""`ballast models`: lists the models that were fetched from a hub, and removes them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from ballast.errors import ConfigError
from ballast.host.sizes import human
from ballast.hub.naming import HUGGING_FACE, HubName, choices, is_hub_name, read_name, repo_at
from ballast.hub.store import Store

_PREFIX = "models--"


def listed(caches: Mapping[str, Path]) -> str:
    """A line a model of all hubs' caches: its name and commit, and the bytes that it takes."""
    lines = [line for site, cache in caches.items() for line in _lines(site, cache)]
    return "".join(lines) or f"{caches[HUGGING_FACE]}: no GGUF model was fetched\n"


def _lines(site: str, cache: Path) -> Iterator[str]:
    for folder in sorted(cache.glob(f"{_PREFIX}*/snapshots/*")):
        repo = folder.parent.parent.name.removeprefix(_PREFIX).replace("--", "/", 1)
        if is_hub_name(repo):
            for choice in choices(Store(cache, repo).files(folder.name)):
                yield f"{repo_at(site, repo)}:{choice.quant}@{folder.name}  {human(choice.num_bytes)}\n"


def remove(cache: Path, name: HubName) -> str:
    """Remove all of a repository, and say how much that was. Raises ConfigError for one that is not there."""
    folder = Store(cache, name.repo).path
    if name != read_name(name.written) or not folder.is_dir() or folder.is_symlink():
        raise ConfigError("remove", name.written, "expected org/repo of a model that `ballast models` lists")
    freed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    shutil.rmtree(folder)
    return f"{name.written}: {human(freed)} removed\n"
