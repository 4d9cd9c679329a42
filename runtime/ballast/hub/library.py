"""`ballast models`: lists the models that were fetched from a hub, and removes them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ballast.errors import ConfigError
from ballast.host.sizes import human
from ballast.hub.naming import HUGGING_FACE, HubName, choices, is_hub_name, read_name, repo_at
from ballast.hub.remote import SCOPE_FOLDER
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
    freed = _size(folder)
    shutil.rmtree(folder)
    return f"{name.written}: {human(freed)} removed\n"


def remove_all(caches: Iterable[Path]) -> str:
    """Remove every repository of these caches, complete or not, and the folders that are empty then. Report the bytes.
    A cache that does not exist is no error."""
    freed = 0
    for cache in sorted(caches, key=lambda cache: len(cache.parts), reverse=True):  # one may be inside another
        for folder in (*cache.glob(f"{_PREFIX}*"), cache / ".locks"):
            if folder.is_dir() and not folder.is_symlink():
                freed += _size(folder)
                shutil.rmtree(folder)
        for folder in (cache, *([cache.parent] if cache.parent.name == SCOPE_FOLDER else ())):
            with suppress(OSError):  # not empty: something else is kept there
                folder.rmdir()
    return f"{human(freed)} removed\n"


def _size(folder: Path) -> int:
    """The bytes of its files; a link counts nothing."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
