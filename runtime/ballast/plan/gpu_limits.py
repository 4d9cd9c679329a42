"""What a GPU cannot compute of a file, for want of kernels for it: checked before anything is loaded."""

from __future__ import annotations

import logging
from dataclasses import replace

from ballast.config.options import Config
from ballast.errors import ConfigError
from ballast.model.hybrid.sparse.sizes import MOST_CHOSEN
from ballast.model.spec import ModelSpec
from ballast.model.tensors import GPU_TYPES, Group, expected_tensors, group_of
from ballast.weights.gguf import GgufModel

log = logging.getLogger(__name__)

_DENSE: tuple[Group, ...] = ("attention", "shared experts", "dense feed-forward", "output")
_OPTIONS_OF_EXPERTS = ("gpu_experts", "pcie_share", "stream_from_tokens")


def why_not_on_gpu(gguf: GgufModel, spec: ModelSpec) -> str | None:
    """Why a GPU cannot compute what every token needs: None if it can."""
    if spec.index is not None and spec.index.top_k > MOST_CHOSEN:
        return (
            f"a token attends to {spec.index.top_k} positions, and kernels on a GPU choose at most {MOST_CHOSEN}; "
            "the CPU chooses as many"
        )
    found = _undecoded(gguf, spec, *_DENSE)
    if spec.tied_output and gguf.tensors["token_embd.weight"].ggml_type not in GPU_TYPES:
        found = found or "token_embd.weight"
    if found is None:
        return None
    return f"{found} is {gguf.tensors[found].ggml_type.name}, which no kernel decodes on a GPU; the CPU reads it"


def experts_on_cpu(config: Config, gguf: GgufModel, spec: ModelSpec) -> Config:
    """The configuration of a GPU with the routed experts left to the CPU where no kernel decodes their types on the
    GPU. Raises ConfigError for an option that asks for experts there."""
    found = _undecoded(gguf, spec, "routed experts")
    if found is None:
        return config
    kind = gguf.tensors[found].ggml_type.name
    for option in _OPTIONS_OF_EXPERTS:
        value = getattr(config.machine, option)
        if value:
            raise ConfigError(
                option, value, f"{found} is {kind}, which no kernel decodes on a GPU; leave it at 0, and the CPU serves"
            )
    log.warning("the CPU computes all routed experts", extra={"tensor": found, "type": kind})
    machine = replace(config.machine, gpu_experts=0, pcie_share=0.0, stream_from_tokens=0)
    return replace(config, machine=machine)


def _undecoded(gguf: GgufModel, spec: ModelSpec, *groups: Group) -> str | None:
    """The first tensor of these groups that a GPU does not decode."""
    for name, shape in expected_tensors(spec).items():
        is_matrix = len(shape) > 1 and group_of(name) in groups
        if is_matrix and gguf.tensors[name].ggml_type not in GPU_TYPES:
            return name
    return None
