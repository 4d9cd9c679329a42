"""`ballast models`: lists the models that were fetched from a hub, and removes them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ballast.errors import ConfigError
from ballast.host.sizes import human
from ballast.hub.naming import (
    FOLDER_PREFIX,
    HUGGING_FACE,
    OCI,
    S3,
    HubName,
    choices,
    is_hub_name,
    read_name,
    repo_at,
    repo_of_folder,
)
from ballast.hub.remote import SCOPE_FOLDER
from ballast.hub.store import Store


def listed(caches: Mapping[str, Path]) -> str:
    """A line a model of all hubs' caches: its name and commit, and the bytes that it takes."""
    lines = [line for site, cache in caches.items() for line in _lines(site, cache)]
    return "".join(lines) or f"{caches[HUGGING_FACE]}: no GGUF model was fetched\n"


def _lines(site: str, cache: Path) -> Iterator[str]:
    for folder in sorted(cache.glob(f"{FOLDER_PREFIX}*/snapshots/*")):
        repo, commit = repo_of_folder(site, folder.parent.parent.name), folder.name
        if is_hub_name(repo_at(site, repo)):
            for choice in choices(Store(cache, repo, site).files(commit)):
                named = f"@sha256:{commit}:{choice.quant}" if site == OCI else f":{choice.quant}@{commit}"
                yield f"{repo_at(site, repo)}{named}  {human(choice.num_bytes)}\n"


def remove(cache: Path, name: HubName) -> str:
    """Remove all of a repository, and say how much that was. Raises ConfigError for one that is not there."""
    folder = Store(cache, name.repo, name.site).path
    if name != read_name(name.written) or not folder.is_dir() or folder.is_symlink():
        raise ConfigError("remove", name.written, "expected the repository of a model that `ballast models` lists")
    freed = _size(folder)
    shutil.rmtree(folder)
    return f"{name.written}: {human(freed)} removed\n"


def remove_all(caches: Iterable[Path]) -> str:
    """Remove every repository of these caches, complete or not, and the folders that are empty then. Report the bytes.
    A cache that does not exist is no error."""
    freed = 0
    for cache in sorted(caches, key=lambda cache: len(cache.parts), reverse=True):  # one may be inside another
        for folder in (*cache.glob(f"{FOLDER_PREFIX}*"), cache / ".locks"):
            if folder.is_dir() and not folder.is_symlink():
                freed += _size(folder)
                shutil.rmtree(folder)
        for folder in (cache, *([cache.parent] if cache.parent.name in (SCOPE_FOLDER, S3) else ())):
            with suppress(OSError):  # not empty: something else is kept there
                folder.rmdir()
    return f"{human(freed)} removed\n"


def _size(folder: Path) -> int:
    """The bytes of its files; a link counts nothing."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
