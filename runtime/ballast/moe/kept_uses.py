"""Keeps how experts were used for the next start of a model on this machine, where experts in GPU memory follow use."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ballast.errors import ConfigError
from ballast.host.startup.kernel_cache import measurements_folder
from ballast.moe.expert_heat import num_tokens_of, uses_of_heat
from ballast.moe.profile import ExpertProfile, fingerprint, read_profile, write_profile
from ballast.weights.gguf import GgufModel

log = logging.getLogger(__name__)


def read_kept_uses(gguf: GgufModel, model: str, num_layers: int, num_experts: int) -> NDArray[np.int64] | None:
    """The uses [layers, E] that the last server of `gguf`, called `model`, has kept; None if there are none."""
    try:
        file = _file(gguf)
        return read_profile(file, gguf, model, num_layers, num_experts).uses if file.exists() else None
    except (ConfigError, OSError) as error:
        log.warning("kept uses of experts are ignored", extra={"why": str(error)})
        return None


def keep_heat(gguf: GgufModel, model: str, num_used: int, heat: NDArray[np.float64]) -> bool:
    """Keep the heat [layers, E] of `gguf`, called `model`, whose tokens select `num_used` experts, if there is any.
    Returns False if it cannot be written, with a warning."""
    if not heat.any():
        return True
    try:
        file = _file(gguf)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        profile = ExpertProfile(model, fingerprint(gguf), num_tokens_of(heat, num_used), uses_of_heat(heat))
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            partial = Path(folder, "uses.json")
            write_profile(partial, profile)
            partial.replace(file)
    except (ConfigError, OSError) as error:
        log.warning("uses of experts are not kept", extra={"why": str(error)})
        return False
    return True


def _file(gguf: GgufModel) -> Path:
    return measurements_folder().parent / "expert_uses" / f"{fingerprint(gguf).removeprefix('sha256:')[:32]}.json"
