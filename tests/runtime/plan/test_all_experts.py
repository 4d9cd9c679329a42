"""A GPU that can hold all experts and a cache for a long conversation does, with shorter steps if need be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ballast.config.options import Config, MachineConfig, ModelConfig, SchedulingConfig
from ballast.model.spec import ModelSpec
from ballast.plan import MemoryPlan, check_memory, plan_for
from ballast.plan.described import Described
from ballast.plan.lengths import AMPLE_CACHE
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import write_hollow_model
from devkit.models.quant_recipes import q4_k_m_types
from devkit.models.specs.qwen3 import QWEN3_30B_SPEC, QWEN35_35B_SPEC

GIB = 1 << 30
Planned = Callable[..., MemoryPlan]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    folder, files = tmp_path_factory.mktemp("hollow"), dict[str, Path]()

    def plan(
        spec: ModelSpec,
        gib: float,
        gpu_experts: int | None = None,
        stream_from_tokens: int | None = None,
        **scheduling: int,
    ) -> MemoryPlan:
        if spec.name not in files:
            files[spec.name] = write_hollow_model(folder / f"{len(files)}.gguf", spec, q4_k_m_types(spec))
        gguf = open_gguf(files[spec.name])
        machine = MachineConfig(
            device="cuda:0",
            vram_limit=(int(gib * GIB),),
            cpu_threads=8,
            gpu_experts=gpu_experts,
            stream_from_tokens=stream_from_tokens,
            kv_host_bytes=0,
        )
        config = Config(
            model=ModelConfig(gguf_path=gguf.path), scheduling=SchedulingConfig(**scheduling), machine=machine
        )
        found = plan_for(config, gguf, spec, Described(host_memory=64 * GIB))
        check_memory(found)
        return found

    return plan


@pytest.mark.parametrize("gib", [23.5, 24])  # a card of 24 GiB has less than that free
def test_shorter_steps_make_room_for_all_experts(planned: Planned, gib: float) -> None:
    plan = planned(QWEN3_30B_SPEC, gib)
    assert plan.holds_all_experts
    assert plan.numbers.step_tokens == 1024
    assert plan.numbers.cache_lens >= AMPLE_CACHE
    assert plan.lengths is not None
    assert "room for all experts" in plan.lengths.derived["cache_lens"]
    assert planned(QWEN3_30B_SPEC, 32).numbers.step_tokens == 4096, "longer steps do not help a GPU with all experts"


def test_a_long_conversation_takes_precedence(planned: Planned) -> None:
    """One request may have the whole cache, and a full batch of useful replies fits."""
    without = planned(QWEN3_30B_SPEC, 23, max_batch_size=1)
    assert not without.holds_all_experts
    assert without.numbers.step_tokens == 16384
    assert planned(QWEN3_30B_SPEC, 23, max_batch_size=1, cache_lens=16384).holds_all_experts
    assert planned(QWEN3_30B_SPEC, 24, max_batch_size=1).numbers.cache_lens >= AMPLE_CACHE
    assert not planned(QWEN3_30B_SPEC, 24, max_batch_size=16).holds_all_experts


def test_the_reason_for_a_cache_of_one_long_conversation_is_the_experts(planned: Planned) -> None:
    """A quarter of the free memory would hold fewer tokens."""
    plan = planned(changed(QWEN3_30B_SPEC, name="wide cache", num_kv_heads=16), 34, max_batch_size=1)
    assert plan.holds_all_experts
    assert plan.numbers.cache_lens == AMPLE_CACHE
    assert plan.lengths is not None
    assert "room for all experts" in plan.lengths.derived["cache_lens"]


def test_a_larger_cache_displaces_no_expert(planned: Planned) -> None:
    """The memory that is free with all experts is less than a quarter of that without any."""
    plan = planned(QWEN35_35B_SPEC, 32)
    assert plan.holds_all_experts
    assert plan.numbers.cache_lens > 2 * AMPLE_CACHE


def test_options_keep_experts_in_host_memory(planned: Planned) -> None:
    assert not planned(QWEN3_30B_SPEC, 32, gpu_experts=1000).holds_all_experts
    long = planned(QWEN3_30B_SPEC, 24, prefill_chunk_size=16384)
    assert not long.holds_all_experts
    assert long.numbers.step_tokens == 16384


@pytest.mark.parametrize("step_tokens", [512, 8192])
def test_steps_of_a_given_length_are_kept(planned: Planned, step_tokens: int) -> None:
    plan = planned(QWEN3_30B_SPEC, 28, prefill_chunk_size=step_tokens)
    assert plan.holds_all_experts
    assert plan.numbers.step_tokens == step_tokens


def test_without_streaming_all_experts_are_worth_most(planned: Planned) -> None:
    assert planned(QWEN3_30B_SPEC, 24, stream_from_tokens=0).holds_all_experts
