"""Finds the files of the one model that a path names: a file, any one of its shards, or a folder."""

from __future__ import annotations

import re
from pathlib import Path

from ballast.errors import ConfigError, ModelError
from ballast.weights.file_kind import kind_instead_of_model

_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")
_EXTRA = re.compile(r"\.|mtp-|(.*[-._])?mmproj([-._].*)?$", re.IGNORECASE)
"""Names of other files in model repositories: hidden files, blocks for multi-token prediction, and projectors for
images."""


def is_extra_file(name: str) -> bool:
    """Whether a file with this name belongs to a model but is not one itself."""
    return _EXTRA.match(name) is not None


def model_files(path: Path) -> list[Path]:
    """The files of the model, in shard order. Raises ConfigError if the path does not specify exactly one model,
    ModelError if a shard is missing."""
    if path.is_dir():
        return _files_in(path)
    if path.is_symlink() and not path.exists():
        raise ConfigError("gguf_path", path, f"links to {path.readlink()}, which does not exist")
    if not path.exists():
        raise ConfigError("gguf_path", path, "no such file or folder")
    shard = _SHARD.fullmatch(path.name)
    return [path] if shard is None else _siblings(path.parent, shard["stem"], int(shard["count"]))


def _files_in(folder: Path) -> list[Path]:
    found: dict[str, list[Path]] = {}
    try:
        for file in sorted(each for each in folder.glob("*.gguf") if not each.is_dir()):
            shard = _SHARD.fullmatch(file.name)
            key = file.name if shard is None else f"{shard['stem']}-*-of-{shard['count']}.gguf"
            found.setdefault(key, []).append(file)
        below = sorted({each.parent.name for each in folder.glob("*/*.gguf") if not each.parent.name.startswith(".")})
    except OSError as error:
        raise ConfigError("gguf_path", folder, f"the folder cannot be read ({error.strerror})") from error
    others = {key: kind for key, files in found.items() if (kind := _kind_instead(files)) is not None}
    models = {key: files for key, files in found.items() if key not in others}
    models = {key: files for key, files in models.items() if not is_extra_file(key)} or models
    if len(models) > 1:
        raise ConfigError("gguf_path", folder, f"contains {len(models)} models; pass one of them: {', '.join(models)}")
    if not models:
        kinds = ", ".join(f"{key} is {kind.partition(';')[0]}" for key, kind in others.items())
        problem = f"no model in this folder: {kinds}" if kinds else "no *.gguf file in this folder"
        hint = f"; its subfolders {', '.join(below)} contain some: pass one of these" if below else ""
        raise ConfigError("gguf_path", folder, f"{problem}{hint}")
    [files] = models.values()
    return model_files(files[0])


def _kind_instead(files: list[Path]) -> str | None:
    """A description of a file, or a set of shards, that is not a model; None for a model."""
    kind = kind_instead_of_model(files[0], is_shard=_SHARD.fullmatch(files[0].name) is not None)
    return kind or ("a hidden file" if files[0].name.startswith(".") else None)


def _siblings(folder: Path, stem: str, count: int) -> list[Path]:
    files = [folder / f"{stem}-{index:05d}-of-{count:05d}.gguf" for index in range(1, count + 1)]
    for file in files:
        if not file.exists():
            raise ModelError(file, f"this shard is missing; the model has {count}, all in the same folder")
    if not files:
        raise ModelError(folder / f"{stem}-*-of-{count:05d}.gguf", "a model of 0 shards; rename the file")
    return files
