"""From what was asked to what will be done: relations between options are checked, and "auto" is left in `numa` alone,
which `ballast.numa.plan_threads` decides from the topology, and with a GPU in what its memory and speed decide."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ballast.config import Config, MachineConfig, ModelConfig, SchedulingConfig, ServerConfig
from ballast.errors import ConfigError
from ballast.gpu import auto_device

QUEUED_CACHES = 8
"""How many times over the waiting prompts may fill the KV cache, unless the operator says otherwise."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def resolve(config: Config, default_threads: int) -> Config:
    """The same configuration, complete. `default_threads`: that compute where cpu_threads is "auto".

    Raises ConfigError. Reads nothing of a path but whether it is there, and where device=auto whether a GPU
    can be used.
    """
    _check_cache(config.scheduling)
    _check_ports(config.server)
    _check_tls(config.server)
    asked = config.machine.device
    device, reason = auto_device() if asked == "auto" else ({"cuda": "cuda:0"}.get(asked, asked), "asked for")
    return replace(
        config,
        device_reason=reason,
        model=_check_paths(config.model),
        scheduling=_resolve_scheduling(config.scheduling, on_gpu=device.startswith("cuda")),
        machine=_resolve_machine(config.machine, device, default_threads),
    )


def _check_cache(scheduling: SchedulingConfig) -> None:
    batch, new, cache = scheduling.max_batch_size, scheduling.max_new_tokens, scheduling.cache_lens
    if cache <= batch * new:
        raise ConfigError(
            "cache_lens",
            cache,
            f"must be greater than max_batch_size * max_new_tokens = {batch} * {new} = {batch * new}, so that a full "
            f"batch of full-length replies fits; the smallest cache_lens that passes is {batch * new + 1}",
        )


def _check_ports(server: ServerConfig) -> None:
    if server.admin_port is not None and server.admin_port == server.port != 0:
        raise ConfigError(
            "admin_port", server.admin_port, "is the API's port; choose another, or leave it out to share that one"
        )


def _check_tls(server: ServerConfig) -> None:
    for given, missing in (("tls_cert_file", "tls_key_file"), ("tls_key_file", "tls_cert_file")):
        if getattr(server, given) is not None and getattr(server, missing) is None:
            raise ConfigError(given, getattr(server, given), f"needs {missing} as well; HTTPS takes both")


def _check_paths(model: ModelConfig) -> ModelConfig:
    if model.model_path is not None and not model.model_path.is_dir():
        if _HUB_ID.fullmatch(str(model.model_path)) and not model.model_path.exists():
            raise ConfigError(
                "model_path",
                model.model_path,
                "a local directory is needed, and this looks like a Hugging Face id; nothing is downloaded here: "
                "fetch the model's config.json and tokenizer files into a directory and name that",
            )
        raise ConfigError(
            "model_path",
            model.model_path,
            "a local directory with the model's config.json and tokenizer files is needed, and this is not one",
        )
    for name in ("gguf_path", "optimize_config_path"):
        path: Path | None = getattr(model, name)
        if path is not None and not path.exists():
            raise ConfigError(name, path, "no such file or directory")
    return model


def _resolve_scheduling(scheduling: SchedulingConfig, *, on_gpu: bool) -> SchedulingConfig:
    max_batch_size = 1 if scheduling.backend_type == "ktransformers" else scheduling.max_batch_size
    if scheduling.chunk_size < max_batch_size:
        raise ConfigError(
            "chunk_size",
            scheduling.chunk_size,
            f"must be at least max_batch_size = {max_batch_size}: every request that decodes takes one token a step",
        )
    prefill_chunk_size = scheduling.prefill_chunk_size
    if prefill_chunk_size is None and not on_gpu:
        prefill_chunk_size = scheduling.chunk_size
    if prefill_chunk_size is not None and prefill_chunk_size < scheduling.chunk_size:
        raise ConfigError(
            "prefill_chunk_size",
            prefill_chunk_size,
            f"must be auto or at least chunk_size = {scheduling.chunk_size}: it is the limit where no decode waits",
        )
    cache_lens = -(-scheduling.cache_lens // scheduling.block_tokens) * scheduling.block_tokens
    return replace(
        scheduling,
        max_batch_size=max_batch_size,
        prefill_chunk_size=prefill_chunk_size,
        cache_lens=cache_lens,
        max_queue_tokens=scheduling.max_queue_tokens or QUEUED_CACHES * cache_lens,
    )


def _resolve_machine(asked: MachineConfig, device: str, default_threads: int) -> MachineConfig:
    if device == "cpu":
        _check_gpu_alone(asked)
        asked = replace(asked, gpu_experts=0, pcie_share=0.0)
    elif asked.expert_profile is not None and not asked.expert_profile.is_file():
        raise ConfigError("expert_profile", asked.expert_profile, "no such file; `ballast profile` writes one")
    return replace(asked, device=device, cpu_threads=asked.cpu_threads or default_threads)


def _check_gpu_alone(asked: MachineConfig) -> None:
    """Nothing that only a GPU can do."""
    for name, what in (
        ("vram_limit", "limits a GPU's memory"),
        ("stream_from_tokens", "is about experts that are streamed through a GPU"),
        ("gpu_experts", "is about experts in a GPU's memory"),
        ("expert_profile", "places experts in a GPU's memory"),
        ("pcie_share", "is about experts that a GPU reads"),
    ):
        if getattr(asked, name) is not None:
            raise ConfigError(name, getattr(asked, name), f"{what}, and device={asked.device} uses none")
