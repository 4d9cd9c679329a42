"""`ballast models`: lists and removes downloaded models."""

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
    """One line per model in all hubs' caches: its name, commit and size."""
    lines = [line for site, cache in caches.items() for line in _lines(site, cache)]
    return "".join(lines) or f"{caches[HUGGING_FACE]}: no downloaded GGUF model\n"


def _lines(site: str, cache: Path) -> Iterator[str]:
    for folder in sorted(cache.glob(f"{FOLDER_PREFIX}*/snapshots/*")):
        repo, commit = repo_of_folder(site, folder.parent.parent.name), folder.name
        if is_hub_name(repo_at(site, repo)):
            for choice in choices(Store(cache, repo, site).files(commit)):
                named = f"@sha256:{commit}:{choice.quant}" if site == OCI else f":{choice.quant}@{commit}"
                yield f"{repo_at(site, repo)}{named}  {human(choice.num_bytes)}\n"


def remove(cache: Path, name: HubName) -> str:
    """Remove a repository, and report its size. Raises ConfigError if it does not exist."""
    folder = Store(cache, name.repo, name.site).path
    if name != read_name(name.written) or not folder.is_dir() or folder.is_symlink():
        raise ConfigError("remove", name.written, "expected a repository that `ballast models` lists")
    freed = _size(folder)
    shutil.rmtree(folder)
    return f"{name.written}: {human(freed)} removed\n"


def remove_all(caches: Iterable[Path]) -> str:
    """Remove every complete or partial repository from these caches, and then empty folders. Report the number of
    bytes. A cache may be missing."""
    freed = 0
    for cache in sorted(caches, key=lambda cache: len(cache.parts), reverse=True):  # a cache may be inside another one
        for folder in (*cache.glob(f"{FOLDER_PREFIX}*"), cache / ".locks"):
            if folder.is_dir() and not folder.is_symlink():
                freed += _size(folder)
                shutil.rmtree(folder)
        for folder in (cache, *([cache.parent] if cache.parent.name in (SCOPE_FOLDER, S3) else ())):
            with suppress(OSError):  # not empty: it has other files
                folder.rmdir()
    return f"{human(freed)} removed\n"


def _size(folder: Path) -> int:
    """The total size of its files, without links."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
