"""The built-in model, whose trained weights are part of the package, also in other layouts and types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf.quants
import numpy as np
import tokenizers
from gguf import GGUFReader

from ballast.tiny.model import TinyModel, write_model
from ballast.tiny.presets import BALLAST_TINY
from ballast.tiny.tokenizer import tokenizer_of
from ballast.tiny.weights import Floats

_FOLDER = Path(__file__).with_name("trained")
BUILT_IN = TinyModel(_FOLDER / "model.gguf", _FOLDER / "config")
"""The model that `ballast serve` serves by default. Its model card is in the same folder."""


def write_built_in(directory: Path, *, mla: str = "split", quant: str = "q8_0", num_shards: int = 1) -> TinyModel:
    """Write the built-in model in another layout or type, like `write_tiny_model`, with the same errors.

    The weights come from the shipped file, which has rounded weights; another type rounds them again.
    """
    backend = tokenizers.Tokenizer.from_file(str(BUILT_IN.config_dir / "tokenizer.json"))
    tensors = joint_tensors(BUILT_IN.gguf)
    return write_model(
        directory, BALLAST_TINY, tokenizer_of(backend), tensors, mla=mla, quant=quant, num_shards=num_shards
    )


def joint_tensors(file: Path) -> Iterator[tuple[str, Floats]]:
    """(name, values) of the dequantised tensors of a file in the split layout, converted to the joint one."""
    keys: dict[str, Floats] = {}
    for tensor in GGUFReader(file).tensors:
        values = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        if ".attn_k_b." in tensor.name:
            keys[tensor.name] = values  # [heads, latent, nope]
        elif ".attn_v_b." in tensor.name:
            key = keys.pop(tensor.name.replace("v_b", "k_b")).transpose(0, 2, 1)
            joint = np.concatenate([key, values], axis=1)
            yield tensor.name.replace("v_b", "kv_b"), joint.reshape(-1, joint.shape[-1])
        else:
            yield tensor.name, values
