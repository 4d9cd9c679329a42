"""Tiny models for tests, each of which is made once in a run: making one takes up to two seconds."""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ballast.tiny import TinyModel, TinyShape, weights
from ballast.tiny.model import rows_for, write_model
from ballast.tiny.presets import PRESETS
from ballast.tiny.tokenizer import TinyTokenizer, make_tokenizer

MakeTiny = Callable[..., TinyModel]
"""By the arguments of `write_tiny_model` but for the folder."""

_scratch = tempfile.TemporaryDirectory(prefix="tiny-models-")
_folder = Path(_scratch.name)


def share(folder: Path) -> None:
    """Have all processes of a run share the models in `folder`."""
    global _folder
    _folder = folder


def tiny_model(
    arch: str = "v3",
    mla: str = "split",
    quant: str = "q4_k",
    seed: int = 0,
    overrides: TinyShape | None = None,
    num_shards: int = 1,
) -> TinyModel:
    """The model that `ballast.tiny.write_tiny_model` writes, only to be read."""
    arguments = (arch, mla, quant, seed, overrides, num_shards)
    kept = _folder / f"{arch}-{mla}-{quant}-{zlib.crc32(repr(arguments).encode()):08x}"
    if not kept.exists():
        _folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_folder) as scratch:
            made = Path(scratch) / "model"
            drawn = _drawn(overrides or PRESETS[arch], seed)
            write_model(made, *drawn, mla=mla, quant=quant, num_shards=num_shards)
            with contextlib.suppress(OSError):  # another process was faster
                made.rename(kept)
    return TinyModel(min(kept.glob("model*.gguf")), kept / "config")


def write_tiny_model(directory: Path, **arguments: Any) -> TinyModel:
    """As `ballast.tiny`'s, except that an earlier model in `directory` is not removed."""
    kept = tiny_model(**arguments).gguf
    shutil.copytree(kept.parent, directory, dirs_exist_ok=True)
    return TinyModel(directory / kept.name, directory / "config")


@functools.lru_cache(1)
def _drawn(shape: TinyShape, seed: int) -> tuple[TinyShape, TinyTokenizer, list[tuple[str, weights.Floats]]]:
    """Drawing numbers takes a third of the time, and a model in other types has those of the one before."""
    tokenizer = make_tokenizer(shape.family)
    num_tokens = tokenizer.num_tokens
    return shape, tokenizer, list(weights.tensors(shape, num_tokens, rows_for(num_tokens), seed))
