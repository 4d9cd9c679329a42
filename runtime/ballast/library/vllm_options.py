"""Arguments of vLLM's `LLM`: those with another name here, and those with only one accepted value or no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ballast.errors import ConfigError
from ballast.wire.field_rules import is_same

RENAMED: Mapping[str, str] = {
    "model": "gguf_path",
    "tokenizer": "model_path",
    "max_num_seqs": "max_batch_size",
    "block_size": "block_tokens",
    "kv_cache_dtype": "kv_type",
}
"""vLLM's name → the equivalent option of `ballast serve`."""


@dataclass(frozen=True, slots=True)
class _Only:
    """Accepted values, which have no effect, in addition to None."""

    values: tuple[Any, ...]
    advice: str
    """Advice for other values."""


_ANY = object()
_LAYERS_ARE_DIVIDED = "GPUs divide the layers; leave it out, and name them in device, such as cuda:0,cuda:1"
_ONE_ENGINE = "there is one engine, in this process; leave it out"
_FILE = "the model's file defines it; leave it out, and choose another GGUF for other types"
_PULLED = "models are local files; download one with `ballast pull`"
_NO_LORA = "adapters are not supported; merge them into the model's file"
_ONLY_TEXT = "prompts are texts; leave it out"
_NO_SPECULATION = "speculative decoding is not supported; leave it out"
_LENGTHS = "leave it out, and set cache_lens, the KV tokens that all prompts share"
_NO_EFFECT = _Only((_ANY,), "")

FIXED: Mapping[str, _Only] = {
    "tensor_parallel_size": _Only((1,), _LAYERS_ARE_DIVIDED),
    "pipeline_parallel_size": _Only((1,), _LAYERS_ARE_DIVIDED),
    "data_parallel_size": _Only((1,), _ONE_ENGINE),
    "enable_expert_parallel": _Only((False,), _LAYERS_ARE_DIVIDED),
    "distributed_executor_backend": _Only(("uni", "mp"), _ONE_ENGINE),
    "dtype": _Only(("auto",), _FILE),
    "quantization": _Only(("gguf",), _FILE),
    "load_format": _Only(("auto", "gguf"), "models are GGUF files; leave it out"),
    "revision": _Only((), _PULLED),
    "code_revision": _Only((), _PULLED),
    "tokenizer_revision": _Only((), _PULLED),
    "hf_token": _Only((), _PULLED),
    "hf_config_path": _Only((), _PULLED),
    "download_dir": _Only((), _PULLED),
    "tokenizer_mode": _Only(("auto", "hf"), "there is only one tokenizer mode; leave it out"),
    "skip_tokenizer_init": _Only((False,), "the tokenizer is always loaded; prompts may be token ids"),
    "hf_overrides": _Only(({},), _FILE),
    "rope_scaling": _Only(({},), _FILE),
    "rope_theta": _Only((), _FILE),
    "generation_config": _Only(("vllm",), "defaults of sampling are the server's; set them in SamplingParams"),
    "override_generation_config": _Only(({},), "set defaults of sampling in SamplingParams"),
    "enable_prefix_caching": _Only((True,), "the prefix cache is always on and does not change texts"),
    "enable_chunked_prefill": _Only((True,), "prompts are always computed in chunks; see chunk_size"),
    "max_num_batched_tokens": _Only((), "see chunk_size and prefill_chunk_size"),
    "num_gpu_blocks_override": _Only((), _LENGTHS),
    "kv_cache_memory_bytes": _Only((), _LENGTHS),
    "swap_space": _Only((0,), "see kv_host_bytes, which keeps what a GPU's cache evicts"),
    "cpu_offload_gb": _Only((0,), "experts are kept in host memory anyway; see vram_limit and gpu_experts"),
    "enable_lora": _Only((False,), _NO_LORA),
    "max_loras": _Only((), _NO_LORA),
    "max_lora_rank": _Only((), _NO_LORA),
    "lora_modules": _Only((), _NO_LORA),
    "limit_mm_per_prompt": _Only(({},), _ONLY_TEXT),
    "mm_processor_kwargs": _Only(({},), _ONLY_TEXT),
    "allowed_local_media_path": _Only(("",), _ONLY_TEXT),
    "speculative_config": _Only(({},), _NO_SPECULATION),
    "speculative_model": _Only((), _NO_SPECULATION),
    "num_speculative_tokens": _Only((0,), _NO_SPECULATION),
    "reasoning_parser": _Only(("",), "the model's family defines how replies are parsed; leave it out"),
    "tool_call_parser": _Only(("",), "the model's family defines how replies are parsed; leave it out"),
    "task": _Only(("auto", "generate"), "models generate text; leave it out"),
    "runner": _Only(("auto", "generate"), "models generate text; leave it out"),
    "convert": _Only(("auto", "none"), "models generate text; leave it out"),
    "max_logprobs": _Only(tuple(range(21)), "at most 20 alternatives are returned"),
    # Models contain no code, graphs do not change texts, there is one grammar backend, and logging is Python's.
    "trust_remote_code": _NO_EFFECT,
    "enforce_eager": _NO_EFFECT,
    "max_seq_len_to_capture": _NO_EFFECT,
    "compilation_config": _NO_EFFECT,
    "disable_custom_all_reduce": _NO_EFFECT,
    "disable_log_stats": _NO_EFFECT,
    "async_scheduling": _NO_EFFECT,
    "guided_decoding_backend": _NO_EFFECT,
    "structured_outputs_config": _NO_EFFECT,
    "use_tqdm_on_load": _NO_EFFECT,
}
"""Arguments without an equivalent option."""


def without_fixed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without vLLM's arguments that have no effect. Raises ConfigError for other values of these."""
    for name in options.keys() & FIXED.keys():
        value, rule = options[name], FIXED[name]
        is_taken = value is None or _ANY in rule.values or any(is_same(value, each) for each in rule.values)
        if not is_taken:
            raise ConfigError(name, value, rule.advice)
    return {name: value for name, value in options.items() if name not in FIXED}


def vram_share(value: Any) -> float:
    """`gpu_memory_utilization`: the fraction of a GPU's memory that may be used. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(
            "gpu_memory_utilization", value, "must be a fraction of the GPU's memory, greater than 0 and at most 1"
        )
    return float(value)


def whole_or_none(name: str, value: Any, least: int) -> int | None:
    """A whole number, or None. Raises ConfigError."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ConfigError(name, value, f"must be a whole number of at least {least}, or None")
    return value
