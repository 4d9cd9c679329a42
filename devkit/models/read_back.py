"""Files written for a spec with some keys changed, and the specs that are read back from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ballast.model.metadata import HfConfig, read_spec
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models.gguf_files import write_model


def file_of(folder: Path, spec: ModelSpec, keys: Mapping[str, Any] | None = None, **changes: Any) -> GgufModel:
    """A file of `spec` with these keys, without their prefix; None leaves a key out. `changes`: of `write_model`."""
    metadata = {f"{spec.architecture.name}.{key}": value for key, value in (keys or {}).items()}
    return open_gguf(write_model(folder / "model.gguf", spec, metadata=metadata, **changes))


def read_back(
    folder: Path,
    spec: ModelSpec,
    keys: Mapping[str, Any] | None = None,
    config: HfConfig | None = None,
    **changes: Any,
) -> ModelSpec:
    """The spec of the file that `file_of` writes, whose tensors are checked as well."""
    gguf = file_of(folder, spec, keys, **changes)
    found = read_spec(gguf, config)
    check_tensors(gguf, found)
    return found
