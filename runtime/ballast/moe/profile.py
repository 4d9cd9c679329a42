"""The file of expert profiles: how often each routed expert of a model was chosen. `ballast profile` writes it. It is
used to choose the GPU's experts."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ballast.documents.json_document import read_json
from ballast.documents.small_file import DocumentError
from ballast.errors import ConfigError
from ballast.weights.gguf import GgufModel, block_of

_OPTION = "expert_profile"
_Count = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True, slots=True)
class ExpertProfile:
    """The counts of one model, valid for all quantisations."""

    model: str
    fingerprint: str
    num_tokens: int
    """Number of computed tokens, of prompts and replies."""
    uses: NDArray[np.int64]  # [routed layers, E]


class _Document(BaseModel):
    """The file's shape."""

    model_config = ConfigDict(strict=True)

    model: str
    fingerprint: str
    num_tokens: _Count
    uses: list[list[_Count]]


def fingerprint(gguf: GgufModel) -> str:
    """A digest of the first router, which all quantisations of a model share."""
    routers = {block_of(name): name for name in gguf.tensors if name.endswith(".ffn_gate_inp.weight")}
    name = routers[min(block for block in routers if block is not None)]
    digest = hashlib.sha256(repr(gguf.tensors[name].shape).encode())
    digest.update(gguf.data(name).tobytes())
    return f"sha256:{digest.hexdigest()}"


def check_can_write(file: Path) -> None:
    """Raises ConfigError if `write_profile` could not write the file. Called before hours of computation."""
    if file.is_dir():
        raise ConfigError("out", file, "is a folder; give the path of a file")
    if not file.parent.is_dir():
        raise ConfigError("out", file, f"cannot be written: there is no folder {file.parent}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError("out", file, "cannot be written: permission denied")


def write_profile(file: Path, profile: ExpertProfile) -> None:
    """Raises ConfigError when the file cannot be written."""
    document = {
        "model": profile.model,
        "fingerprint": profile.fingerprint,
        "num_tokens": profile.num_tokens,
        "uses": profile.uses.tolist(),
    }
    try:
        file.write_text(json.dumps(document) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError("out", file, f"cannot be written ({error.strerror})") from error


def read_profile(file: Path, gguf: GgufModel, model: str, num_layers: int, num_experts: int) -> ExpertProfile:
    """The profile of `gguf`, called `model`, with `num_layers` routed layers of `num_experts` experts. Raises
    ConfigError for a file that is not a profile or belongs to another model."""
    try:
        document = read_json(file, _Document)
        profile = ExpertProfile(
            document.model, document.fingerprint, document.num_tokens, np.array(document.uses, np.int64)
        )
    except DocumentError as error:
        raise ConfigError(_OPTION, file, f"is not a profile that `ballast profile` wrote: {error}") from error
    except ValueError as error:
        problem = "is not a profile that `ballast profile` wrote: uses has layers of unequal length"
        raise ConfigError(_OPTION, file, problem) from error
    if profile.fingerprint != fingerprint(gguf) or profile.uses.shape != (num_layers, num_experts):
        raise ConfigError(
            _OPTION,
            file,
            f"is the profile of another model, {profile.model}; create one for {model} ({gguf.path}) with "
            "`ballast profile`, or leave the option out",
        )
    return profile
