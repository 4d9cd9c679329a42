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
from ballast.moe.profile import read_profile
from ballast.moe.rule_file import read_placement
from ballast.plan.check import check_memory
from ballast.plan.checked_model import load_checked_text, open_checked
from ballast.plan.described import THIS_MACHINE, Described
from ballast.plan.gpu_experts import GpuExpertOptions
from ballast.plan.gpu_limits import why_not_on_gpu
from ballast.plan.host import make_plan
from ballast.plan.hybrid import make_hybrid_plan
from ballast.plan.kv_tiers import asked_tiers, auto_host_bytes
from ballast.plan.lengths import CacheSizes, cache_sizes, lengths_of
from ballast.plan.memory import DeviceMemory, MemoryPlan, Numbers
from ballast.plan.report import device_choice, device_line, render, to_json
from ballast.plan.rows import PackedFolder
from ballast.plan.shortfall import shortfall_lines
from ballast.plan.speed_report import speed_report
from ballast.plan.streaming import LONGEST_WITHOUT_STREAMING, step_choices
from ballast.weights.gguf import GgufModel
from ballast.weights.packed_key import files_digest
from ballast.weights.packed_set import keys_in_use, unused_bytes

QUEUED_CACHES = 8
"""Default bound of the waiting prompts, in multiples of the KV cache."""


def plan_for(config: Config, gguf: GgufModel, spec: ModelSpec, described: Described = THIS_MACHINE) -> MemoryPlan:
    """The plan of a resolved configuration on this machine, or on the one that is described: with a GPU, for the
    longest steps that fit where prefill_chunk_size is "auto", and with a cache that suits the memory where cache_lens
    is. Raises ConfigError for rules that cannot be followed."""
    sizes = cache_sizes(config.scheduling, spec.context_length)
    plan = _plan_with_cache(config, gguf, spec, sizes, described)
    return replace(plan, lengths=lengths_of(config.scheduling, spec.context_length, plan.numbers.cache_lens, sizes))


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
        tiers=asked_tiers(config.machine),
    )
    folder = None if config.machine.packed_dir is None else _packed_folder(config.machine.packed_dir, gguf)
    if folder is not None and folder.files.is_in_memory:
        memory = memory.with_reused(folder.unused_bytes)
    if not config.machine.device.startswith("cuda"):

        def make_on_host(tried: Numbers) -> MemoryPlan:
            return make_plan(gguf, spec, tried, memory, folder, placement)

        return _with_suited_cache(make_on_host, make_on_host(numbers), sizes)
    too_much = why_not_on_gpu(spec)
    if too_much is not None:
        raise ConfigError("device", config.machine.device, f"{gguf.path}: {too_much}, with device=cpu")
    if numbers.isa == "reference":
        raise _needs_packing(config.machine.device)
    device = _device_memory(config.machine, described)
    expert_options = _gpu_expert_options(config.machine, gguf, spec)
    choices = step_choices(scheduling.chunk_size, scheduling.prefill_chunk_size, config.machine.stream_from_tokens)

    def make(tried: Numbers) -> MemoryPlan:
        return make_hybrid_plan(gguf, spec, tried, memory, device, expert_options, folder, placement)

    plans = []
    for step_tokens, streams in choices:
        plans.append(make(replace(numbers, prefill_chunk_size=step_tokens, streams_experts=streams)))
        if plans[-1].fits and step_tokens <= _longest_step(plans[-1], scheduling.prefill_chunk_size):
            break
    else:
        # For a host that is too small whatever the steps: as one that is not would have it.
        plans.append(next((plan for plan in plans if plan.cache_fits), plans[-1]))
    plan = _with_suited_cache(make, _streaming_if_cache_may_shrink(plans, sizes), sizes)
    if plan.numbers.tiers.host_bytes is None:
        plan = _with_host_tier(make, plan)
    assert plan.device is not None
    if not plan.device.has_host_experts or plan.device.streaming is not None:
        return plan
    return replace(plan, device=replace(plan.device, streaming_cache_lens=max(map(_streaming_cache, plans))))


def _streaming_if_cache_may_shrink(plans: Sequence[MemoryPlan], sizes: CacheSizes) -> MemoryPlan:
    """The last of the plans tried; if it lacks buffers for streamed experts that a smaller cache would leave room for,
    and the size of the cache is open: the longest steps that leave the cache half of what it would have, else the
    shortest if the least cache fits. Prompts take many times as long where the CPU computes their experts."""
    last = plans[-1]
    streaming = [plan for plan in plans if _streaming_cache(plan) >= sizes.least]
    if _streaming_cache(last) or not streaming:
        return last
    half = min(sizes.useful, last.largest_cache) // 2
    return next((plan for plan in streaming if _streaming_cache(plan) >= half), streaming[-1])


def _streaming_cache(plan: MemoryPlan) -> int:
    """The largest cache_lens with which the plan's experts are streamed; 0 where they are not."""
    return 0 if plan.device is None or plan.device.streaming is None else plan.device.max_cache_lens


def _with_host_tier(make: Callable[[Numbers], MemoryPlan], plan: MemoryPlan) -> MemoryPlan:
    """`plan`, with host memory beside the GPU's KV cache if there is enough to spare."""
    host_bytes = auto_host_bytes(plan.memory.available_bytes - plan.needed_bytes)
    return make(replace(plan.numbers, tiers=replace(plan.numbers.tiers, host_bytes=host_bytes)))


def _with_suited_cache(make: Callable[[Numbers], MemoryPlan], plan: MemoryPlan, sizes: CacheSizes) -> MemoryPlan:
    """`plan`, whose cache is the useful one, with the cache that suits the memory there is."""
    if not plan.cache_fits:
        fitting = sizes.fitting(plan.largest_cache)
        return plan if fitting == sizes.useful else make(replace(plan.numbers, cache_lens=fitting))
    grown = sizes.grown(plan.largest_cache)
    if not plan.fits or grown == sizes.useful:
        return plan
    larger = make(replace(plan.numbers, cache_lens=grown))
    # It may displace experts for which the host has no room.
    return larger if larger.fits else plan


def _longest_step(plan: MemoryPlan, asked: int | None) -> int:
    """Most tokens of a step that are worth its memory: a GPU that has all experts gains nothing by longer ones, for
    which others wait."""
    assert plan.device is not None
    return plan.numbers.step_tokens if asked or plan.device.has_host_experts else LONGEST_WITHOUT_STREAMING


def settle(
    config: Config, gguf: GgufModel, spec: ModelSpec, described: Described = THIS_MACHINE
) -> tuple[Config, MemoryPlan]:
    """A resolved configuration with what was left to its plan, and that plan. Where the device was left open and the
    GPU does not do, it is the CPU with the reason, if the CPU can serve. Raises ConfigError as `plan_for` does."""
    device = config.machine.device
    is_open = config.device_is_open and device != "cpu"
    if is_open and chosen_isa() == "reference":
        forced = f"BALLAST_CPU_ISA=reference packs no weights, and {device} takes packed ones"
        config = on_cpu(config, forced if _can_pack() else f"beside {device} the CPU would need {_packing_needs()}")
    too_much = why_not_on_gpu(spec)
    if is_open and config.machine.device != "cpu" and too_much is not None:
        config = on_cpu(config, too_much)
    plan = plan_for(config, gguf, spec, described)
    if is_open and plan.device is not None and not plan.device.fits:
        needed, of_gpu = human(plan.device.needed_bytes), plan.device.memory
        available = f"{human(of_gpu.available_bytes)}, {of_gpu.limited_by}"
        without = on_cpu(config, f"{device} is too small: {needed} needed, available are {available}")
        plan_without = plan_for(without, gguf, spec, described)
        if plan_without.fits:
            config, plan = without, plan_without
    return planned(config, plan), plan


def planned(config: Config, plan: MemoryPlan) -> Config:
    """The configuration with what was left to its plan."""
    numbers, lengths, asked = plan.numbers, plan.lengths, config.machine.stream_from_tokens
    assert lengths is not None, "the plan is a configuration's"
    on_gpu = plan.device is not None
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
            stream_from_tokens=0 if on_gpu and not numbers.streams_experts else asked,
            vram_limit=None if plan.device is None else plan.device.memory.available_bytes,
            kv_host_bytes=numbers.tiers.host_bytes or 0,
        ),
    )


def _can_pack() -> bool:
    """Whether the CPU has kernels that pack weights, chosen or not."""
    return len(kernels.usable_isas()) > 1


def _packing_needs() -> str:
    flags = packing_flags()
    return (
        f"{', '.join(flags)}, which packed weights take"
        if flags
        else "fast kernels, and this build has none for its architecture"
    )


def _needs_packing(device: str) -> ConfigError:
    """That the reference kernels, which read the file's blocks, cannot work beside a GPU, which reads panels."""
    if _can_pack():
        return ConfigError(
            "BALLAST_CPU_ISA",
            "reference",
            f"packs no weights, and device={device} takes packed ones; leave the variable unset, or take device=cpu",
        )
    return ConfigError("device", device, f"takes a CPU with {_packing_needs()}; device=cpu needs none")


def _host_memory(described: Described) -> Memory:
    if described.host_memory is None:
        return read_machine().memory
    return Memory(described.host_memory, described.host_memory, None)


def _device_memory(machine: MachineConfig, described: Described) -> DeviceMemory:
    limit = machine.vram_limit
    free = None if _has_another_gpu(machine, described) else free_vram(machine.device)
    if free is None and limit is None:
        raise ConfigError(
            "vram_limit",
            "auto",
            f"{machine.device} is not here to be asked for its memory; name a size such as 24GiB, and the plan is made "
            "for that",
        )
    if limit is not None and (free is None or limit <= free):
        return DeviceMemory(machine.device, limit, "the limit that vram_limit sets", "vram_limit")
    assert free is not None
    return DeviceMemory(machine.device, free, "what is free there")


def _has_another_gpu(machine: MachineConfig, described: Described) -> bool:
    """Whether the machine is another one, whose GPU has the memory that vram_limit says."""
    return described != THIS_MACHINE and machine.vram_limit is not None


def _gpu_expert_options(machine: MachineConfig, gguf: GgufModel, spec: ModelSpec) -> GpuExpertOptions:
    uses, num_experts = None, spec.routing.num_experts
    if machine.expert_profile is not None:
        uses = read_profile(machine.expert_profile, gguf, spec.name, len(spec.routed_layers), num_experts).uses
    return GpuExpertOptions(machine.gpu_experts, uses, machine.pcie_share)


def _packed_folder(path: Path, gguf: GgufModel) -> PackedFolder:
    """The folder, or the one that it will be made in. Raises ConfigError when there is neither."""
    try:
        files = read_file_system(path if path.exists() else path.parent)
    except OSError as error:
        raise ConfigError("packed_dir", path, f"cannot be read ({error.strerror})") from error
    in_use = keys_in_use(path)
    try:
        digest = files_digest(gguf) if in_use else b""
    except OSError:  # a file has gone meanwhile; whoever reads it says so
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
    """Print the plan of a resolved configuration, with the speed to expect; 0 when it fits and `ballast serve` would
    start. `others`: the model in other quantisations, by name and bytes. Raises as `plan_for` and `check_memory` do,
    and ModelError; a plan that does not fit is printed before it is refused."""
    gguf, spec = open_checked(config.model)
    load_checked_text(config.model, gguf, spec)
    here = read_machine()
    gpu_name = here.gpus[0] if here.gpus and not _has_another_gpu(config.machine, described) else None
    config, plan = settle(config, gguf, spec, described)
    speed = speed_report(gguf, spec, plan, here.memory, described, gpu_name, config.machine.activation_bytes)
    missing = [] if plan.fits else shortfall_lines(gguf, spec, plan, others)
    if as_json:
        expected = {"speed": None if speed is None else speed.to_json(), "missing": missing}
        told = json.dumps(to_json(plan) | device_choice(config) | expected, indent=2) + "\n"
    else:
        told = device_line(config) + render(plan, [] if speed is None else speed.lines(), missing)
    (out or sys.stdout).write(told)
    check_memory(plan)
    return 0
