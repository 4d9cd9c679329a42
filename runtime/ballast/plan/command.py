"""`ballast plan`, and the plan that `ballast serve` checks first."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TextIO

from ballast._core import numa
from ballast.config import Config, MachineConfig, ModelConfig
from ballast.errors import ConfigError
from ballast.gpu import free_vram
from ballast.machine import read_machine
from ballast.model.isa import chosen_isa
from ballast.model.metadata import read_config, read_spec
from ballast.model.modules import module_tree
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors
from ballast.moe.placement import Rule, assign, read_rules
from ballast.moe.profile import read_profile
from ballast.numa import plan_threads
from ballast.plan.check import check_memory
from ballast.plan.device import DeviceMemory
from ballast.plan.host import make_plan
from ballast.plan.hybrid import make_hybrid_plan
from ballast.plan.memory import MemoryPlan, Numbers
from ballast.plan.report import render, to_json
from ballast.plan.residents import Wanted
from ballast.plan.streaming import step_choices
from ballast.tiny import BUILT_IN
from ballast.weights.gguf import GgufModel, open_gguf

_LISTED_DEVICES = 16
"""Rules may speak of as many; what they ask for is compared with where modules go."""


def plan_for(config: Config, gguf: GgufModel, spec: ModelSpec) -> MemoryPlan:
    """The plan of a resolved configuration on this machine: with a GPU, for the longest steps that fit where
    prefill_chunk_size is "auto". Raises ConfigError for rules that cannot be followed."""
    scheduling, rules_path = config.scheduling, config.model.optimize_config_path
    rules: tuple[Rule, ...] = () if rules_path is None else read_rules(rules_path)
    numbers = Numbers(
        cache_lens=scheduling.cache_lens,
        block_tokens=scheduling.block_tokens,
        max_batch_size=scheduling.max_batch_size,
        chunk_size=scheduling.chunk_size,
        prefill_chunk_size=scheduling.prefill_chunk_size or scheduling.chunk_size,
        isa=chosen_isa(),
        threads_per_node=_threads_per_node(config),
    )
    memory = read_machine().memory
    if not config.machine.device.startswith("cuda"):
        return make_plan(gguf, spec, assign(module_tree(spec), rules, source=rules_path), numbers, memory)
    device = _device_memory(config.machine)
    if numbers.isa == "reference":
        raise ConfigError(
            "BALLAST_CPU_ISA", "reference", f"packs no weights, and device={device.name} takes packed ones"
        )
    assignment = assign(module_tree(spec), rules, source=rules_path, num_cuda_devices=_LISTED_DEVICES)
    wanted = _wanted(config.machine, gguf, spec)
    choices = step_choices(scheduling.chunk_size, scheduling.prefill_chunk_size, config.machine.stream_from_tokens)
    plans = []
    for step_tokens, streams in choices:
        tried = replace(numbers, prefill_chunk_size=step_tokens, streams_experts=streams)
        plans.append(make_hybrid_plan(gguf, spec, assignment, tried, memory, device, wanted))
        if plans[-1].fits:
            return plans[-1]
    # For a host that is too small whatever the steps: as one that is not would have it.
    return next((plan for plan in plans if plan.device is not None and plan.device.fits), plans[-1])


def planned(config: Config, plan: MemoryPlan) -> Config:
    """The configuration with what was left to its plan."""
    numbers, asked = plan.numbers, config.machine.stream_from_tokens
    on_gpu = plan.device is not None
    return replace(
        config,
        scheduling=replace(config.scheduling, prefill_chunk_size=numbers.prefill_chunk_size),
        machine=replace(
            config.machine,
            stream_from_tokens=0 if on_gpu and not numbers.streams_experts else asked,
            vram_limit=None if plan.device is None else plan.device.memory.available_bytes,
        ),
    )


def _device_memory(machine: MachineConfig) -> DeviceMemory:
    free, limit = free_vram(machine.device), machine.vram_limit
    if free is None and limit is None:
        raise ConfigError(
            "vram_limit",
            "auto",
            f"{machine.device} is not here to be asked for its memory; name a size such as 24GiB, and the plan is made "
            "for that",
        )
    if limit is not None and (free is None or limit <= free):
        return DeviceMemory(machine.device, limit, "the limit that vram_limit sets")
    assert free is not None
    return DeviceMemory(machine.device, free, "what is free there")


def _wanted(machine: MachineConfig, gguf: GgufModel, spec: ModelSpec) -> Wanted:
    uses, num_layers = None, spec.num_layers - spec.num_dense_layers
    if machine.expert_profile is not None:
        uses = read_profile(machine.expert_profile, gguf, spec.name, num_layers, spec.num_experts).uses
    return Wanted(machine.gpu_experts, uses, machine.pcie_share)


def _threads_per_node(config: Config) -> tuple[int, ...]:
    num_threads = config.machine.cpu_threads or 1
    placement = plan_threads(numa.read_topology(), num_threads, config.machine.numa).placement
    return (num_threads,) if placement is None else tuple(len(node.cpus) for node in placement.nodes)


def run(config: Config, *, as_json: bool = False, out: TextIO | None = None) -> int:
    """Print the plan of a resolved configuration; 0 when it fits. Raises as `plan_for` and `check_memory` do, and
    ModelError; the plan is printed before it is refused."""
    gguf = open_model(config.model)
    model_path = config.model.model_path
    spec = read_spec(gguf, None if model_path is None else read_config(model_path))
    check_tensors(gguf, spec)
    plan = plan_for(config, gguf, spec)
    (out or sys.stdout).write(json.dumps(to_json(plan), indent=2) + "\n" if as_json else render(plan))
    check_memory(plan)
    return 0


def open_model(config: ModelConfig) -> GgufModel:
    """The model that the options name, or the built-in one. Raises ModelError."""
    return open_gguf(config.gguf_path or BUILT_IN.gguf)
