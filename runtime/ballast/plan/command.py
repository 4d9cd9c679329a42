"""`ballast plan`, and the plan that `ballast serve` checks first."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from ballast._core import kernels, numa
from ballast.config.options import Config, MachineConfig
from ballast.config.resolve import on_cpu
from ballast.engine.startup.build import DeviceSettings, EngineSettings, engine_settings
from ballast.errors import ConfigError
from ballast.host.filesystem import read_file_system
from ballast.host.gpu import free_vram
from ballast.host.isa import chosen_isa, packing_flags
from ballast.host.machine import Memory, read_machine
from ballast.host.numa import threads_per_node
from ballast.host.sizes import human
from ballast.model.modules import module_tree
from ballast.model.spec import ModelSpec
from ballast.moe.device_rules import NO_RULES
from ballast.moe.kept_uses import read_kept_uses
from ballast.moe.profile import read_profile
from ballast.moe.rule_file import read_placement
from ballast.plan.checked_model import load_checked_text, open_checked
from ballast.plan.described import THIS_MACHINE, Described
from ballast.plan.gpus.gpu_experts import GpuExpertOptions
from ballast.plan.gpus.gpu_limits import why_not_fp8, why_not_on_gpu
from ballast.plan.gpus.hybrid import make_hybrid_plan
from ballast.plan.gpus.layer_ranges import layer_ranges
from ballast.plan.host import make_plan
from ballast.plan.kv_tiers import auto_host_bytes, requested_tiers
from ballast.plan.lengths import CacheSizes, cache_sizes, lengths_of
from ballast.plan.memory import DeviceMemory, MemoryPlan, Numbers
from ballast.plan.reports.check import check_memory
from ballast.plan.reports.report import device_choice, device_line, render, to_json
from ballast.plan.reports.shortfall import shortfall_lines
from ballast.plan.reports.speed_report import speed_report
from ballast.plan.rows import PackedFolder
from ballast.plan.streaming import longest_without_streaming, step_choices, steps_with_all_experts
from ballast.weights.gguf import GgufModel
from ballast.weights.packed_key import files_digest
from ballast.weights.packed_set import keys_in_use, unused_bytes

QUEUED_CACHES = 8
"""Default limit for the tokens of waiting prompts, in multiples of the KV cache."""


def plan_for(config: Config, gguf: GgufModel, spec: ModelSpec, described: Described = THIS_MACHINE) -> MemoryPlan:
    """The plan of a resolved configuration on this machine or on the described one. If prefill_chunk_size is "auto",
    it uses the longest steps that fit a GPU; if cache_lens is "auto", it sizes the cache by the memory. Room for all
    experts in GPU memory comes first. Raises ConfigError for placement rules that cannot be applied."""
    sizes = cache_sizes(config.scheduling, spec.context_length)
    plan = _plan_with_cache(config, gguf, spec, sizes, described)
    cache_lens = plan.numbers.cache_lens
    leaves_experts = plan.holds_all_experts and cache_lens not in (sizes.useful, sizes.grown(plan.largest_cache))
    lengths = lengths_of(config.scheduling, spec.context_length, cache_lens, sizes, leaves_experts=leaves_experts)
    return replace(plan, lengths=lengths)


def _plan_with_cache(
    config: Config, gguf: GgufModel, spec: ModelSpec, sizes: CacheSizes, described: Described
) -> MemoryPlan:
    memory = _host_memory(described)
    scheduling, rules_path = config.scheduling, config.model.optimize_config_path
    placement = NO_RULES if rules_path is None else read_placement(rules_path, module_tree(spec))
    numbers = Numbers(
        cache_lens=sizes.useful,
        block_tokens=scheduling.block_tokens,
        max_batch_size=scheduling.max_batch_size,
        chunk_size=scheduling.chunk_size,
        prefill_chunk_size=scheduling.prefill_chunk_size or scheduling.chunk_size,
        isa=chosen_isa(),
        threads_per_node=_threads_per_node(config),
        stream_from_tokens=config.machine.stream_from_tokens,
        state_snapshots=scheduling.state_snapshots,
        tiers=requested_tiers(config.machine),
        kv_type=config.machine.kv_type,
    )
    folder = None if config.machine.packed_dir is None else _packed_folder(config.machine.packed_dir, gguf)
    if folder is not None and folder.files.is_in_memory:
        memory = memory.with_reused(folder.unused_bytes)
    if not config.machine.gpus:

        def make_on_host(tried: Numbers) -> MemoryPlan:
            return make_plan(gguf, spec, tried, memory, folder, placement)

        return _with_suited_cache(make_on_host, make_on_host(numbers), sizes)
    _check_gpu(config, gguf, spec, numbers)
    devices = _device_memories(config.machine, described)
    expert_options = _gpu_expert_options(config.machine, gguf, spec, described)
    divided: dict[tuple[int, bool], list[range]] = {}
    """The layers of each device, by step: divided once, for the first cache that is tried."""
    choices = _step_choices(config)

    def make(tried: Numbers) -> MemoryPlan:
        step = tried.prefill_chunk_size, tried.streams_experts
        if step not in divided:
            divided[step] = layer_ranges(gguf, spec, tried, devices, expert_options, config.machine.device_split)
        return make_hybrid_plan(gguf, spec, tried, memory, devices, expert_options, folder, placement, divided[step])

    steps = steps_with_all_experts(scheduling.prefill_chunk_size, config.machine.stream_from_tokens, len(devices))
    streams = config.machine.stream_from_tokens != 0
    whole = _with_all_experts(make, replace(numbers, cache_lens=sizes.ample, streams_experts=streams), steps)
    if whole is not None:
        return _with_host_tier(make, _with_spare_cache(make, whole, sizes))
    plans = []
    for step_tokens, streams in choices:
        plans.append(make(replace(numbers, prefill_chunk_size=step_tokens, streams_experts=streams)))
        if plans[-1].fits and step_tokens <= _longest_step(plans[-1], scheduling.prefill_chunk_size):
            break
    else:
        # If the host is too small for any step: the first plan whose cache fits, to report the shortfall.
        plans.append(next((plan for plan in plans if plan.cache_fits), plans[-1]))
    plan = _with_suited_cache(make, _streaming_if_cache_may_shrink(plans, sizes), sizes)
    plan = _with_host_tier(make, plan)
    assert plan.gpus is not None
    if not plan.gpus.has_host_experts or plan.gpus.streaming is not None:
        return plan
    return replace(plan, gpus=replace(plan.gpus, streaming_cache_lens=max(map(_streaming_cache, plans))))


def _step_choices(config: Config) -> list[tuple[int, bool]]:
    """See `step_choices`."""
    limits, streams_from = config.scheduling, config.machine.stream_from_tokens
    return step_choices(limits.chunk_size, limits.prefill_chunk_size, streams_from, limits.cache_lens)


def _check_gpu(config: Config, gguf: GgufModel, spec: ModelSpec, numbers: Numbers) -> None:
    """Raises ConfigError if GPUs cannot compute the model under these settings."""
    too_much = why_not_on_gpu(spec)
    if too_much is not None:
        raise ConfigError("device", config.machine.device, f"{gguf.path}: {too_much}, with device=cpu")
    refusal = why_not_fp8(spec) if numbers.kv_type == "fp8" else None
    if refusal is not None:
        raise ConfigError("kv_type", "fp8", f"{gguf.path}: {refusal}; use kv_type=fp16")
    if numbers.isa == "reference":
        raise _needs_packing(config.machine.device)


def _with_all_experts(
    make: Callable[[Numbers], MemoryPlan], numbers: Numbers, steps: Sequence[int]
) -> MemoryPlan | None:
    """The plan with the longest of `steps`, ascending, that leave room in the GPUs' memory for all experts and the
    cache; None if there is none. Replies are then faster, which is worth more than longer steps and contexts."""
    found = None
    for step_tokens in steps:
        plan = make(replace(numbers, prefill_chunk_size=step_tokens))
        if not (plan.fits and plan.holds_all_experts):
            break
        found = plan
    return found


def _streaming_if_cache_may_shrink(plans: Sequence[MemoryPlan], sizes: CacheSizes) -> MemoryPlan:
    """The last plan that was tried. If a smaller cache would leave room for the buffers of streamed experts and
    cache_lens is "auto": the longest steps that leave half of the cache, or the shortest steps if only the smallest
    cache fits. Prompts take many times as long if the CPU computes their experts."""
    last = plans[-1]
    streaming = [plan for plan in plans if _streaming_cache(plan) >= sizes.least]
    if _streaming_cache(last) or not streaming:
        return last
    half = min(sizes.useful, last.largest_cache) // 2
    return next((plan for plan in streaming if _streaming_cache(plan) >= half), streaming[-1])


def _streaming_cache(plan: MemoryPlan) -> int:
    """The largest cache_lens with which the plan streams experts; 0 if it streams none."""
    return 0 if plan.gpus is None or plan.gpus.streaming is None else plan.gpus.max_cache_lens


def _with_host_tier(make: Callable[[Numbers], MemoryPlan], plan: MemoryPlan) -> MemoryPlan:
    """`plan`, with a tier of the GPU's KV cache in host memory if its size is open and enough memory is left."""
    if plan.numbers.tiers.host_bytes is not None:
        return plan
    host_bytes = auto_host_bytes(plan.memory.available_bytes - plan.needed_bytes)
    return make(replace(plan.numbers, tiers=replace(plan.numbers.tiers, host_bytes=host_bytes)))


def _with_suited_cache(make: Callable[[Numbers], MemoryPlan], plan: MemoryPlan, sizes: CacheSizes) -> MemoryPlan:
    """`plan`, whose cache has the useful size, with a cache sized by the available memory."""
    if not plan.cache_fits:
        fitting = sizes.fitting(plan.largest_cache)
        return plan if fitting == sizes.useful else make(replace(plan.numbers, cache_lens=fitting))
    grown = sizes.grown(plan.largest_cache)
    if not plan.fits or grown == sizes.useful:
        return plan
    larger = make(replace(plan.numbers, cache_lens=grown))
    # The larger cache may displace experts from the GPU that the host has no memory for.
    return larger if larger.fits else plan


def _with_spare_cache(make: Callable[[Numbers], MemoryPlan], plan: MemoryPlan, sizes: CacheSizes) -> MemoryPlan:
    """`plan`, which holds all experts, with a larger cache if it displaces none."""
    for size in sizes.all_grown(plan.largest_cache):
        larger = make(replace(plan.numbers, cache_lens=size))
        if larger.fits and larger.holds_all_experts:
            return larger
    return plan


def _longest_step(plan: MemoryPlan, requested: int | None) -> int:
    """Most tokens of a step that justify their memory."""
    assert plan.gpus is not None
    if requested or plan.gpus.has_host_experts:
        return plan.numbers.step_tokens
    return longest_without_streaming(len(plan.gpus.devices))


def settle(
    config: Config, gguf: GgufModel, spec: ModelSpec, described: Described = THIS_MACHINE
) -> tuple[Config, MemoryPlan]:
    """A resolved configuration completed by its plan, and that plan. If the device is "auto" and the GPU cannot serve,
    the configuration uses the CPU, with the reason, if the CPU can. Raises ConfigError as `plan_for` does."""
    requested = config.machine.device
    is_open = config.device_is_open and requested != "cpu"
    if is_open and chosen_isa() == "reference":
        forced = f"BALLAST_CPU_ISA=reference packs no weights, and {requested} needs packed ones"
        config = on_cpu(config, forced if _can_pack() else f"with {requested} the CPU would need {_packing_needs()}")
    too_much = why_not_on_gpu(spec)
    if is_open and config.machine.device != "cpu" and too_much is not None:
        config = on_cpu(config, too_much)
    plan = plan_for(config, gguf, spec, described)
    too_small = next((device for device in plan.devices if not device.fits), None)
    if is_open and too_small is not None:
        needed, memory = human(too_small.needed_bytes), too_small.memory
        available = f"{human(memory.available_bytes)}, {memory.limited_by}"
        without = on_cpu(config, f"{memory.name} is too small: {needed} needed, {available} available")
        plan_without = plan_for(without, gguf, spec, described)
        if plan_without.fits:
            config, plan = without, plan_without
    return planned(config, plan), plan


def planned(config: Config, plan: MemoryPlan) -> Config:
    """The configuration, completed by its plan."""
    numbers, lengths, requested = plan.numbers, plan.lengths, config.machine.stream_from_tokens
    assert lengths is not None, "the plan is a configuration's"
    on_gpu = plan.gpus is not None
    return replace(
        config,
        scheduling=replace(
            config.scheduling,
            prefill_chunk_size=numbers.prefill_chunk_size,
            max_new_tokens=lengths.max_new_tokens,
            cache_lens=lengths.cache_lens,
            max_queue_tokens=config.scheduling.max_queue_tokens or QUEUED_CACHES * lengths.cache_lens,
        ),
        machine=replace(
            config.machine,
            stream_from_tokens=0 if on_gpu and not numbers.streams_experts else requested,
            vram_limit=tuple(device.memory.available_bytes for device in plan.devices) or None,
            kv_host_bytes=numbers.tiers.host_bytes or 0,
        ),
    )


def _can_pack() -> bool:
    """Whether the CPU has kernels that pack weights, selected or not."""
    return len(kernels.usable_isas()) > 1


def _packing_needs() -> str:
    flags = packing_flags()
    return (
        f"{', '.join(flags)}, which packed weights need"
        if flags
        else "fast kernels, and this build has none for its architecture"
    )


def _needs_packing(device: str) -> ConfigError:
    """The error for reference kernels with a GPU: they read the file's blocks, and the GPU needs packed weights."""
    if _can_pack():
        return ConfigError(
            "BALLAST_CPU_ISA",
            "reference",
            f"packs no weights, and device={device} needs packed ones; unset the variable, or use device=cpu",
        )
    return ConfigError("device", device, f"needs a CPU with {_packing_needs()}; device=cpu does not")


def _host_memory(described: Described) -> Memory:
    if described.host_memory is None:
        return read_machine().memory
    return Memory(described.host_memory, described.host_memory, None)


def planned_settings(config: Config, plan: MemoryPlan) -> EngineSettings:
    """The engine's settings for a configuration with a plan's values."""
    return replace(
        engine_settings(config),
        gpu_experts=plan.gpu_experts,
        updates_gpu_experts=plan.updates_gpu_experts,
        expert_uses=plan.expert_uses,
        devices=device_settings(plan),
    )


def device_settings(plan: MemoryPlan) -> tuple[DeviceSettings, ...]:
    """The engine's devices under a plan."""
    return tuple(DeviceSettings(device.memory.name, device.layers, device.limit) for device in plan.devices)


def _device_memories(machine: MachineConfig, described: Described) -> list[DeviceMemory]:
    """The memory of each GPU that the options select."""
    return [
        _device_memory(name, limit, machine, described)
        for name, limit in zip(machine.gpus, machine.vram_limits, strict=True)
    ]


def _device_memory(name: str, limit: int | None, machine: MachineConfig, described: Described) -> DeviceMemory:
    free = None if _has_another_gpu(machine, described) else free_vram(name)
    if free is None and limit is None:
        raise ConfigError(
            "vram_limit",
            "auto",
            f"{name} is not in this machine, so its memory is unknown; set a size such as 24GiB to plan for it",
        )
    if limit is not None and (free is None or limit <= free):
        return DeviceMemory(name, limit, "the limit set by vram_limit", "vram_limit")
    assert free is not None
    return DeviceMemory(name, free, "free memory")


def _has_another_gpu(machine: MachineConfig, described: Described) -> bool:
    """Whether the plan is for another machine, whose GPU memory vram_limit describes."""
    return described != THIS_MACHINE and machine.vram_limit is not None


def _gpu_expert_options(
    machine: MachineConfig, gguf: GgufModel, spec: ModelSpec, described: Described
) -> GpuExpertOptions:
    uses, num_experts = None, spec.routing.num_experts
    if machine.expert_profile is not None:
        uses = read_profile(machine.expert_profile, gguf, spec.name, len(spec.routed_layers), num_experts).uses
    elif machine.gpu_experts_update and machine.measurements == "kept" and described == THIS_MACHINE:
        uses = read_kept_uses(gguf, spec.name, len(spec.routed_layers), num_experts)
    return GpuExpertOptions(
        machine.gpu_experts, uses, machine.pcie_share, machine.gpu_experts_update, pcie=described.pcie
    )


def _packed_folder(path: Path, gguf: GgufModel) -> PackedFolder:
    """The folder, or the one in which it will be created. Raises ConfigError if neither exists."""
    try:
        files = read_file_system(path if path.exists() else path.parent)
    except OSError as error:
        raise ConfigError("packed_dir", path, f"cannot be read ({error.strerror})") from error
    in_use = keys_in_use(path)
    try:
        digest = files_digest(gguf) if in_use else b""
    except OSError:  # a file has vanished; opening it reports that
        in_use, digest = frozenset(), b""
    return PackedFolder(path, files, unused_bytes(path), in_use, digest)


def _threads_per_node(config: Config) -> tuple[int, ...]:
    return threads_per_node(numa.read_topology(), config.machine.cpu_threads or 1, config.machine.numa)


def run(
    config: Config,
    *,
    as_json: bool = False,
    out: TextIO | None = None,
    described: Described = THIS_MACHINE,
    others: Sequence[tuple[str, int]] = (),
) -> int:
    """Print the plan of a resolved configuration with the expected speed. Returns 0 if it fits and `ballast serve`
    would start. `others`: the model's other quantisations, by name and bytes. Raises as `plan_for` and `check_memory`
    do, and ModelError; a plan that does not fit is printed before it is rejected."""
    gguf, spec = open_checked(config.model)
    load_checked_text(config.model, gguf, spec)
    here = read_machine()
    gpu_name = here.gpus[0] if here.gpus and not _has_another_gpu(config.machine, described) else None
    config, plan = settle(config, gguf, spec, described)
    speed = speed_report(gguf, spec, plan, here.memory, described, gpu_name, config.machine.activation_bytes)
    missing = [] if plan.fits else shortfall_lines(gguf, spec, plan, others)
    if as_json:
        expected = {"speed": None if speed is None else speed.to_json(), "missing": missing}
        text = json.dumps(to_json(plan) | device_choice(config) | expected, indent=2) + "\n"
    else:
        text = device_line(config) + render(plan, [] if speed is None else speed.lines(), missing)
    (out or sys.stdout).write(text)
    check_memory(plan)
    return 0
