"""Resolves a configuration: checks options against each other, and replaces "auto" by values.

"auto" stays in `numa`, which `ballast.host.numa.plan_threads` resolves from the topology; in `max_new_tokens` and
`cache_lens`, which `ballast.plan.lengths` resolves from the model and memory; and, with a GPU, in options that depend
on its memory and speed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ballast.config.kinds import Kind, size
from ballast.config.options import MAX_TOKENS, Config, MachineConfig, ModelConfig, SchedulingConfig, ServerConfig
from ballast.errors import ConfigError
from ballast.host.gpu import auto_device, num_visible_gpus

_GPU_OPTIONS: Mapping[str, str] = {
    "device_split": "divides layers among GPUs",
    "vram_limit": "limits a GPU's memory",
    "stream_from_tokens": "is about experts that are streamed through a GPU",
    "gpu_experts": "is about experts in a GPU's memory",
    "gpu_experts_update": "is about experts in a GPU's memory",
    "expert_profile": "places experts in a GPU's memory",
    "pcie_share": "is about experts that a GPU reads",
    "kv_type": "is for a GPU's KV cache; a CPU keeps fp16 or fp32",
    "kv_host_bytes": "is for KV blocks evicted from a GPU; without a GPU, the KV cache is in host memory",
}
"""Options of the machine with values that have no meaning without a GPU → the reason, for error messages."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_MODEL = re.compile(rf"{_HUB_ID.pattern}(?<!\.gguf)(:[\w.-]+)?(@[\w.-]+)?")


def resolve(config: Config, default_threads: int, *, for_another: bool = False) -> Config:
    """The configuration without "auto", as far as possible. `default_threads` replaces cpu_threads "auto".
    `for_another`: a plan for another machine is made, whose GPUs vram_limit describes, if it is set.

    Checks paths only for existence; for device=auto it checks whether a GPU can be used. Raises ConfigError.
    """
    _check_cache(config.scheduling)
    _check_ports(config.server)
    _check_tls(config.server)
    _check_folder("packed_dir", config.machine.packed_dir)
    _check_folder("kv_disk_dir", config.machine.kv_disk_dir)
    if config.machine.kv_disk_bytes is not None and config.machine.kv_disk_dir is None:
        shown = size().show(config.machine.kv_disk_bytes)
        raise ConfigError("kv_disk_bytes", shown, "limits a folder; set the folder with kv_disk_dir")
    requested = config.machine.device
    for_another = for_another and config.machine.vram_limit is not None
    device, reason = auto_device() if requested == "auto" else (full_device(config.machine, for_another), "asked for")
    checked = replace(
        config,
        device_reason=reason,
        device_is_open=requested == "auto",
        model=_check_paths(config.model),
        scheduling=_resolve_scheduling(config.scheduling),
        machine=replace(config.machine, device=device, cpu_threads=config.machine.cpu_threads or default_threads),
    )
    if device == "cpu":
        return on_cpu(checked, reason)
    _check_gpus(checked.machine)
    if config.machine.gpu_experts_update and config.machine.gpu_experts == 0:
        problem = "moves experts in a GPU's memory, and gpu_experts=0 keeps none there; leave one of them out"
        raise ConfigError("gpu_experts_update", "on", problem)
    if config.machine.kv_type == "fp32":
        raise ConfigError(
            "kv_type", "fp32", f"is for a CPU's KV cache; with device={device}, use fp16 or auto, or device=cpu"
        )
    profile = config.machine.expert_profile
    if profile is not None and not profile.is_file():
        raise ConfigError("expert_profile", profile, "no such file; create it with `ballast profile`")
    return checked


def full_device(machine: MachineConfig, for_another: bool = False) -> str:
    """The device with the name of each GPU. "cuda" is all visible ones; where none is visible, and in a plan
    `for_another` machine, there are as many as options have values for."""
    if machine.device != "cuda":
        return machine.device
    described = max(1, len(machine.vram_limit or ()), len(machine.device_split or ()))
    count = described if for_another else num_visible_gpus() or described
    return ",".join(f"cuda:{index}" for index in range(count))


def _check_gpus(machine: MachineConfig) -> None:
    gpus = machine.gpus
    twice = next((name for name in gpus if gpus.count(name) > 1), None)
    if twice is not None:
        raise ConfigError("device", machine.device, f"names {twice} twice; name each GPU once")
    for name in ("device_split", "vram_limit"):
        values = getattr(machine, name) or ()
        if len(values) in (0, len(gpus)) or (name == "vram_limit" and len(values) == 1):
            continue
        advice = "give one value per GPU, or set device to the GPUs to use, such as cuda:0,cuda:1"
        counts = f"{_count(len(values), 'value')} for {_count(len(gpus), 'GPU')} ({', '.join(gpus)})"
        raise ConfigError(name, _shown(machine, name), f"has {counts}; {advice}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _shown(machine: MachineConfig, name: str) -> str:
    kinds: dict[str, Kind] = {field.name: field.metadata["kind"] for field in dataclasses.fields(machine)}
    return kinds[name].show(getattr(machine, name))


def _needs_gpu(name: str, value: object) -> bool:
    """Whether a value of one of `_GPU_OPTIONS` has no meaning without a GPU. 0 disables an option, so it has."""
    return value == "fp8" if name == "kv_type" else value not in (None, 0, "auto")


def on_cpu(config: Config, reason: str) -> Config:
    """A resolved configuration that computes on the CPU.

    Options that need a GPU are dropped if device was "auto". Raises ConfigError for them otherwise.
    """
    machine, scheduling = config.machine, config.scheduling
    set_for_gpu = [name for name in _GPU_OPTIONS if _needs_gpu(name, getattr(machine, name))]
    if set_for_gpu and not config.device_is_open:
        name = set_for_gpu[0]
        raise ConfigError(
            name, _shown(machine, name), f"{_GPU_OPTIONS[name]}, and device=cpu uses no GPU; leave it out"
        )
    return replace(
        config,
        device_reason=reason,
        unused_options=tuple(set_for_gpu),
        scheduling=replace(scheduling, prefill_chunk_size=scheduling.prefill_chunk_size or scheduling.chunk_size),
        machine=replace(
            machine,
            device="cpu",
            device_split=None,
            vram_limit=None,
            stream_from_tokens=None,
            gpu_experts=0,
            gpu_experts_update=False,
            expert_profile=None,
            pcie_share=0.0,
            kv_type="auto" if "kv_type" in set_for_gpu else machine.kv_type,
            kv_host_bytes=0,
        ),
    )


def _check_cache(scheduling: SchedulingConfig) -> None:
    batch, requested, cache = scheduling.max_batch_size, scheduling.max_new_tokens, scheduling.cache_lens
    new = 1 if requested is None else requested
    if batch * new >= MAX_TOKENS:
        raise ConfigError(
            "max_new_tokens",
            new,
            f"a full batch of {batch} such replies takes {batch * new} tokens of cache, and the limit is {MAX_TOKENS}; "
            f"lower it to {(MAX_TOKENS - 1) // batch}, or lower max_batch_size",
        )
    blocks = batch * scheduling.block_tokens
    if cache is not None and requested is None and cache < blocks:
        raise ConfigError(
            "cache_lens",
            cache,
            f"holds no block of {scheduling.block_tokens} tokens for each of max_batch_size = {batch} requests; "
            f"raise it to {blocks} or more, set max_new_tokens, or lower max_batch_size or block_tokens",
        )
    if cache is not None and cache <= batch * new:
        raise ConfigError(
            "cache_lens",
            cache,
            f"must be greater than max_batch_size * max_new_tokens = {batch} * {new} = {batch * new}, so that a full "
            f"batch of full-length replies fits; the smallest cache_lens that passes is {batch * new + 1}",
        )


def _check_ports(server: ServerConfig) -> None:
    if server.admin_port is not None and server.admin_port == server.port != 0:
        raise ConfigError(
            "admin_port",
            server.admin_port,
            "is also the API's port; choose another, or omit it to serve both on one port",
        )


def _check_tls(server: ServerConfig) -> None:
    for given, missing in (("tls_cert_file", "tls_key_file"), ("tls_key_file", "tls_cert_file")):
        if getattr(server, given) is not None and getattr(server, missing) is None:
            raise ConfigError(given, getattr(server, given), f"needs {missing} as well; HTTPS needs both")


def _check_folder(option: str, folder: Path | None) -> None:
    if folder is not None and not folder.is_dir() and (folder.exists() or not folder.parent.is_dir()):
        raise ConfigError(option, folder, "expected a folder, or a new name in an existing folder")


def _check_paths(model: ModelConfig) -> ModelConfig:
    if model.model_path is not None and not model.model_path.is_dir():
        if _HUB_ID.fullmatch(str(model.model_path)) and not model.model_path.exists():
            raise ConfigError(
                "model_path",
                model.model_path,
                "expected a local directory, and this looks like a Hugging Face id; nothing is downloaded here: "
                "download the model's config.json and tokenizer files and pass their directory",
            )
        raise ConfigError(
            "model_path",
            model.model_path,
            "expected a local directory with the model's config.json and tokenizer files",
        )
    for name in ("gguf_path", "optimize_config_path"):
        path: Path | None = getattr(model, name)
        if path is not None and not path.exists():
            problem = "no such file or directory"
            if name == "gguf_path" and _HUB_MODEL.fullmatch(str(path)):
                problem += (
                    "; if this is a model of a hub, download it with `ballast pull` and pass the path that it prints"
                )
            raise ConfigError(name, path, problem)
    return model


def _resolve_scheduling(scheduling: SchedulingConfig) -> SchedulingConfig:
    """Resolves everything that does not depend on the model or on memory."""
    max_batch_size = 1 if scheduling.backend_type == "ktransformers" else scheduling.max_batch_size
    if scheduling.chunk_size < max_batch_size:
        raise ConfigError(
            "chunk_size",
            scheduling.chunk_size,
            f"must be at least max_batch_size = {max_batch_size}: every request that decodes takes one token per step",
        )
    prefill_chunk_size = scheduling.prefill_chunk_size
    if prefill_chunk_size is not None and prefill_chunk_size < scheduling.chunk_size:
        raise ConfigError(
            "prefill_chunk_size",
            prefill_chunk_size,
            f"must be auto or at least chunk_size = {scheduling.chunk_size}: the limit for steps without decoding",
        )
    return replace(scheduling, max_batch_size=max_batch_size)
