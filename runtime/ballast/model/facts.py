"""The facts that a server reports about its model: architecture, size, quantization, and the scalar keys of its
file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from gguf import LlamaFileType

from ballast.weights.gguf import GgufModel

MAX_TEXT_CHARS = 256
"""Maximum length of a value; longer ones are left out."""
_LEFT_OUT = ("tokenizer.", "split.")
_MOSTLY = "MOSTLY_"

Simple = str | int | float | bool


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts that do not depend on weights. The defaults describe a model without a file."""

    architecture: str = "unknown"
    num_parameters: int = 0
    quantization: str = "unknown"
    num_bytes: int = 0
    keys: Mapping[str, Simple] = field(default_factory=dict)
    """The file's keys with scalar values, except those of the tokenizer."""

    @property
    def parameter_size(self) -> str:
        """The number of parameters as text, such as 15.7B."""
        for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
            if self.num_parameters >= size:
                return f"{self.num_parameters / size:.1f}{unit}"
        return str(self.num_parameters)


def facts_of(gguf: GgufModel) -> ModelFacts:
    """The facts of a file."""
    return ModelFacts(
        architecture=str(gguf.metadata.get("general.architecture", "unknown")),
        num_parameters=sum(prod(tensor.shape) for tensor in gguf.tensors.values()),
        quantization=_quantization(gguf),
        num_bytes=sum(tensor.num_bytes for tensor in gguf.tensors.values()),
        keys={
            name: value
            for name, value in gguf.metadata.items()
            if not name.startswith(_LEFT_OUT)
            and isinstance(value, str | int | float)
            and not (isinstance(value, str) and len(value) > MAX_TEXT_CHARS)
        },
    )


def _quantization(gguf: GgufModel) -> str:
    """The quantization from the file's key, such as Q4_K_M; otherwise the type of most of its bytes."""
    try:
        return LlamaFileType(gguf.metadata["general.file_type"]).name.removeprefix(_MOSTLY)
    except (KeyError, ValueError):
        sizes: Counter[str] = Counter()
        for tensor in gguf.tensors.values():
            sizes[tensor.ggml_type.name] += tensor.num_bytes
        return sizes.most_common(1)[0][0] if sizes else "unknown"
