"""The memory plan: every byte accounted for before anything is loaded, and refused with the numbers."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast._core.numa import ANY_CPU, NodeThreads, Placement
from ballast.config.options import Config, ModelConfig, SchedulingConfig
from ballast.errors import ConfigError, ModelError, OutOfMemoryError
from ballast.host.machine import Memory
from ballast.model.kv_pool import KvPool, StatePool, num_kv_blocks, num_window_blocks
from ballast.model.metadata import read_spec
from ballast.model.modules import module_tree
from ballast.model.packed_tensors import Packing
from ballast.model.residence import weight_memory
from ballast.model.rope import build_rope_table
from ballast.model.spec import ModelSpec
from ballast.model.tensors import NGRAM_TABLE, check_tensors, expected_tensors
from ballast.model.weights import load_weights
from ballast.moe.device_rules import NO_RULES
from ballast.moe.rule_file import read_placement
from ballast.plan import MemoryPlan, Numbers, check_memory, make_plan, plan_for, render, rule_lines, run, to_json
from ballast.plan.kv_tiers import KvTierSizes
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.long import spread
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import common_types, write_hollow_model, write_model
from devkit.models.specs.deepseek import V3_SPEC, V32_671B_SPEC, V32_SPEC
from devkit.models.specs.deepseek4 import V4_FLASH_SPEC, V4_PRO_SPEC
from devkit.models.specs.dots import DOTS1_142B_SPEC
from devkit.models.specs.glm import (
    GLM5_SPEC,
    GLM45_AIR_SPEC,
    GLM46_SPEC,
    GLM47_FLASH_SPEC,
    GLM52_SPEC,
    GLM53_FLASH_SPEC,
)
from devkit.models.specs.gpt_oss import GPT_OSS_20B_SPEC, GPT_OSS_120B_SPEC
from devkit.models.specs.hunyuan import HUNYUAN3_SPEC
from devkit.models.specs.kimi import K2_SPEC, KIMI_LINEAR_48B_SPEC
from devkit.models.specs.laguna import LAGUNA_M1_SPEC, LAGUNA_S_SPEC, LAGUNA_XS_SPEC
from devkit.models.specs.mimo import MIMO_FLASH_SPEC, MIMO_SPEC
from devkit.models.specs.minimax import MINIMAX_M2_SPEC
from devkit.models.specs.mistral import MISTRAL_LARGE3_SPEC, MISTRAL_SMALL4_SPEC
from devkit.models.specs.qwen3 import (
    FLASH_NEXT_125B_SPEC,
    QWEN3_30B_SPEC,
    QWEN3_235B_SPEC,
    QWEN3_CODER_SPEC,
    QWEN3_NEXT_SPEC,
)
from devkit.models.specs.step import STEP35_FLASH_SPEC
from devkit.models.written import MakeTiny

GIB = 1 << 30
SPEC = changed(V3_SPEC, hidden=256, width=256)
NUMBERS = Numbers(cache_lens=1000, block_tokens=32, max_batch_size=4, chunk_size=64, prefill_chunk_size=128)
ROOMY = Memory(64 * GIB, 32 * GIB, None)


@pytest.fixture
def gguf(tmp_path: Path) -> GgufModel:
    types = {f"blk.{layer}.ffn_down_exps.weight": kind for layer, kind in ((1, GgmlType.Q4_K), (2, GgmlType.Q6_K))}
    found = open_gguf(write_model(tmp_path / "m.gguf", SPEC, types=types))
    check_tensors(found, SPEC)
    return found


def plan_of(gguf: GgufModel, numbers: Numbers = NUMBERS, memory: Memory = ROOMY, rules: str = "") -> MemoryPlan:
    placement = NO_RULES
    if rules:
        file = gguf.path.parent / "rules.yaml"
        file.write_text(rules)
        placement = read_placement(file, module_tree(SPEC))
    return make_plan(gguf, SPEC, numbers, memory, placement=placement)


def use(plan: MemoryPlan, name: str) -> int:
    [found] = [row.num_bytes for row in plan.uses if row.name == name]
    return found


MODELS = [
    ("v2lite", "joint", "q4_k_m"),
    ("v2lite", "split", "q8_0"),
    ("v3", "joint", "bf16"),
    ("qwen3", "split", "q4_k_m"),
    ("glm45", "split", "q8_0"),
    ("v32", "split", "q4_k_m"),
    ("glm5", "split", "q8_0"),
    ("step35", "split", "q4_k_m"),
    ("laguna", "split", "q4_k_m"),
    ("lagunam1", "split", "q8_0"),
    ("qwen3next", "split", "q4_k_m"),
    ("qwen35", "split", "q8_0"),
    ("kimilinear", "split", "q4_k_m"),
    ("glm53flash", "split", "q4_k_m"),
    ("qwen38flashnext", "split", "q4_k_m"),
    ("v4", "split", "mxfp4"),
]
FAST = kernels.usable_isas()[0]


# Experts are divided among nodes as they are packed; the reference kernels read the file's blocks.
@pytest.mark.parametrize(
    ("arch", "mla", "quant", "num_nodes", "isa"),
    [
        *((*model, 2, FAST) for model in MODELS),
        *(case.values for case in spread(MODELS, [(1, FAST), (1, "reference"), (2, "reference")])),
    ],
)
def test_the_plan_matches_the_memory_of_the_loaded_model(
    written: MakeTiny, arch: str, mla: str, quant: str, num_nodes: int, isa: str
) -> None:
    gguf = open_gguf(written(arch=arch, mla=mla, quant=quant).gguf)
    spec = read_spec(gguf)
    pool = kernels.ThreadPool(Placement([NodeThreads(200 + node, [ANY_CPU]) for node in range(num_nodes)]))
    loaded = weight_memory(load_weights(gguf, spec, spec.vocab_size, Packing(pool, isa, 2), lambda _: None))

    numbers = replace(NUMBERS, isa=isa, threads_per_node=(1,) * num_nodes)
    plan = make_plan(gguf, spec, numbers, ROOMY)

    vectors = sum(
        gguf.tensors[name].num_bytes for name, tensor in expected_tensors(spec).items() if not tensor.is_packed
    )
    # A tensor that two matrices share is counted once.
    places = {place for ranges in (*loaded.experts.values(), loaded.others) for place in ranges}
    assert use(plan, "weights") - vectors == sum(size for _, size in places)


@pytest.mark.parametrize(
    ("spec", "parameters", "token_bytes"),
    [
        (K2_SPEC, 1026.5e9, 2 * 70_272),
        (GLM47_FLASH_SPEC, 29.9e9, 2 * 54_144),
        (QWEN3_30B_SPEC, 30.53e9, 2 * 98_304),
        (QWEN3_235B_SPEC, 235.09e9, 2 * 192_512),
        (QWEN3_CODER_SPEC, 480.15e9, 2 * 253_952),
        (GLM45_AIR_SPEC, 106.8e9, 2 * 188_416),
        (GLM46_SPEC, 352.8e9, 2 * 376_832),
        (MINIMAX_M2_SPEC, 228.7e9, 2 * 253_952),
        (HUNYUAN3_SPEC, 295.0e9, 2 * 327_680),
        (DOTS1_142B_SPEC, 142.8e9, 2 * 1_015_808),
        (V32_671B_SPEC, 671.9e9, 2 * 85_888),
        (GLM5_SPEC, 743.9e9, 2 * 109_824),
        (GLM52_SPEC, 743.4e9, 2 * 95_232),
        (GPT_OSS_20B_SPEC, 20.91e9, 2 * 49_152),
        (GPT_OSS_120B_SPEC, 116.83e9, 2 * 73_728),
        (STEP35_FLASH_SPEC, 196.96e9, 2 * 184_320),
        (MIMO_FLASH_SPEC, 308.8e9, 2 * 222_720),
        (LAGUNA_XS_SPEC, 33.44e9, 2 * 163_840),
        (LAGUNA_S_SPEC, 117.6e9, 2 * 196_608),
        (LAGUNA_M1_SPEC, 225.8e9, 2 * 286_720),
        (MISTRAL_LARGE3_SPEC, 672.9e9, 2 * 70_272),
        (MISTRAL_SMALL4_SPEC, 118.6e9, 2 * 23_040),
        (KIMI_LINEAR_48B_SPEC, 49.12e9, 2 * 8_064),
        (GLM53_FLASH_SPEC, 313.3e9, 2 * 11_968),
        (V4_FLASH_SPEC, 284.3e9, 4 * 4_000),
        (V4_PRO_SPEC, 1573.0e9, 4 * 5_792),
        (FLASH_NEXT_125B_SPEC, 125e9 + 51e9, 2 * 25_344),
    ],
    ids=lambda value: value.name if isinstance(value, ModelSpec) else "",
)
def test_a_model_of_full_size_is_planned_from_its_file(
    tmp_path: Path, spec: ModelSpec, parameters: float, token_bytes: int
) -> None:
    """Twice the cache a token of half precision: a CPU keeps it in float32. GLM's are counted without their block that
    predicts several tokens."""
    gguf = open_gguf(write_hollow_model(tmp_path / "m.gguf", spec, common_types(spec)))
    found = read_spec(gguf)
    check_tensors(gguf, found)
    numbers = replace(NUMBERS, isa=kernels.usable_isas()[0], threads_per_node=(8,))
    plan = make_plan(gguf, found, numbers, ROOMY)
    num_weights = sum(math.prod(info.shape) for info in gguf.tensors.values())
    assert num_weights == pytest.approx(parameters, rel=0.01)
    loaded = sum(info.num_bytes for name, info in gguf.tensors.items() if name != NGRAM_TABLE)
    assert use(plan, "weights") == pytest.approx(loaded, rel=0.03)
    assert use(plan, "KV cache") == 33 * 32 * token_bytes


def test_every_tensor_is_counted_once_with_its_bytes_in_the_file(gguf: GgufModel) -> None:
    plan = plan_of(gguf)
    assert sum(row.num_tensors for row in plan.weights) == len(expected_tensors(SPEC)) == len(gguf.tensors)
    assert use(plan, "weights") == sum(row.num_bytes for row in plan.weights)
    assert use(plan, "weights") == sum(info.num_bytes for info in gguf.tensors.values())


def test_rows_distinguish_groups_and_types(gguf: GgufModel) -> None:
    experts = [row for row in plan_of(gguf).weights if row.group == "routed experts"]
    assert [(row.ggml_type, row.num_tensors, row.num_bytes) for row in experts] == [
        ("F32", 4, 4 * 8 * 256 * 256 * 4),
        ("Q4_K", 1, 8 * 256 * 144),
        ("Q6_K", 1, 8 * 256 * 210),
    ]


def test_tensors_that_are_not_used_take_no_memory(tmp_path: Path, gguf: GgufModel) -> None:
    more = open_gguf(write_model(tmp_path / "more.gguf", SPEC, shapes={"blk.3.nextn.eh_proj.weight": (256, 512)}))
    plain = open_gguf(write_model(tmp_path / "plain.gguf", SPEC))
    assert use(plan_of(more), "weights") == use(plan_of(plain), "weights")


def test_without_a_gpu_rules_move_nothing_and_the_plan_says_so(gguf: GgufModel) -> None:
    plan = plan_of(
        gguf, rules="- match: {name: self_attn, class: torch.nn.Linear}\n  replace: {kwargs: {generate_device: cuda}}"
    )
    assert {row.device for row in plan.weights} == {"cpu"}
    note = plan.placement.notes[0]
    assert "modules are not placed as their rules request, starting with model.layers.0.self_attn." in note
    assert note.endswith(": without --device cuda, the CPU computes everything")


def test_cache_and_tables_match_the_engines_allocations(gguf: GgufModel) -> None:
    pool = KvPool(SPEC.planes, num_kv_blocks(1000, 32), 32)
    plan = plan_of(gguf)
    assert use(plan, "KV cache") == pool.nbytes
    half = replace(NUMBERS, kv_type="fp16")
    in_half = use(make_plan(gguf, SPEC, half, ROOMY), "KV cache")
    assert in_half == KvPool(SPEC.planes, num_kv_blocks(1000, 32), 32, None, "fp16").nbytes == pool.nbytes // 2
    sparse = write_model(gguf.path.parent / "sparse.gguf", V32_SPEC)
    planes = KvPool(V32_SPEC.planes, num_kv_blocks(1000, 32), 32)
    assert [[plane.shape[1] for plane in of_layer] for of_layer in planes.layers] == [[80, 32]] * 3
    assert use(make_plan(open_gguf(sparse), V32_SPEC, NUMBERS, ROOMY), "KV cache") == planes.nbytes
    rope = build_rope_table(SPEC.rope, num_kv_blocks(1000, 32) * 32)
    norms = sum(info.num_bytes for info in gguf.tensors.values() if len(info.shape) == 1)
    assert use(plan, "tables") == rope.cos.nbytes + rope.sin.nbytes + norms


@pytest.mark.parametrize("cache_lens", [1000, 8000, 100_000])
def test_layers_with_a_window_count_with_what_they_keep(tmp_path: Path, cache_lens: int) -> None:
    gguf = open_gguf(write_model(tmp_path / "mimo.gguf", MIMO_SPEC))
    numbers = replace(NUMBERS, cache_lens=cache_lens)
    plan = make_plan(gguf, MIMO_SPEC, numbers, ROOMY)
    num_blocks = num_kv_blocks(cache_lens, 32)
    sizes = MIMO_SPEC.window, num_blocks, 32, numbers.max_batch_size, numbers.step_tokens
    pool, with_tier = (
        KvPool(MIMO_SPEC.planes, num_blocks, 32, num_window_blocks(*sizes, has_tiers=has_tiers))
        for has_tiers in (False, True)
    )
    assert use(plan, "KV cache") == pool.nbytes < KvPool(MIMO_SPEC.planes, num_blocks, 32).nbytes
    on_disk = make_plan(gguf, MIMO_SPEC, replace(numbers, tiers=KvTierSizes(disk_dir=tmp_path)), ROOMY)
    assert use(on_disk, "KV cache") == with_tier.nbytes >= pool.nbytes


@pytest.mark.parametrize(("cache_lens", "num_slots"), [(1000, 16 + 32), (400_000, 16 + 48)])
def test_recurrent_states_count(tmp_path: Path, cache_lens: int, num_slots: int) -> None:
    gguf = open_gguf(write_model(tmp_path / "next.gguf", QWEN3_NEXT_SPEC))
    numbers = replace(NUMBERS, cache_lens=cache_lens, max_batch_size=8)
    plan = make_plan(gguf, QWEN3_NEXT_SPEC, numbers, ROOMY)
    states = StatePool(QWEN3_NEXT_SPEC.states, num_slots)
    assert use(plan, "recurrent state") == sum(state.nbytes for states in states.layers for state in states)
    assert use(plan, "KV cache") == KvPool(QWEN3_NEXT_SPEC.planes, num_kv_blocks(cache_lens, 32), 32).nbytes
    rope = build_rope_table(
        QWEN3_NEXT_SPEC.rope, min(QWEN3_NEXT_SPEC.context_length, num_kv_blocks(cache_lens, 32) * 32)
    )
    norms = [info for info in gguf.tensors.values() if len(info.shape) == 1 or "conv1d" in info.name]
    assert use(plan, "tables") == rope.cos.nbytes + rope.sin.nbytes + sum(info.num_bytes for info in norms)


def test_the_largest_cache_with_states_fits_and_a_block_more_does_not(tmp_path: Path) -> None:
    gguf = open_gguf(write_model(tmp_path / "next.gguf", QWEN3_NEXT_SPEC))

    def planned(cache_lens: int) -> MemoryPlan:
        return make_plan(gguf, QWEN3_NEXT_SPEC, replace(NUMBERS, cache_lens=cache_lens), Memory(64 * GIB, GIB, None))

    largest = planned(QWEN3_NEXT_SPEC.context_length).max_cache_lens
    assert largest > QWEN3_NEXT_SPEC.context_length
    assert planned(largest).fits
    assert not planned(largest + 32).fits


def test_the_largest_cache_with_windows_fits_and_a_block_more_does_not(tmp_path: Path) -> None:
    gguf = open_gguf(write_model(tmp_path / "mimo.gguf", MIMO_SPEC))

    def planned(cache_lens: int) -> MemoryPlan:
        return make_plan(gguf, MIMO_SPEC, replace(NUMBERS, cache_lens=cache_lens), Memory(64 * GIB, GIB, None))

    # The tables of positions grow with the cache up to the context.
    largest = planned(MIMO_SPEC.context_length).max_cache_lens
    assert largest > MIMO_SPEC.context_length
    assert planned(largest).fits
    assert not planned(largest + 32).fits


def test_work_buffers_grow_with_the_longest_step_and_the_batch(gguf: GgufModel) -> None:
    base = use(plan_of(gguf), "work buffers")
    assert use(plan_of(gguf, replace(NUMBERS, chunk_size=128)), "work buffers") == base
    longer = use(plan_of(gguf, replace(NUMBERS, prefill_chunk_size=256)), "work buffers")
    wider = use(plan_of(gguf, replace(NUMBERS, max_batch_size=8)), "work buffers")
    assert longer > base
    assert wider > base


def test_a_plan_that_fits_passes_and_one_byte_less_does_not(gguf: GgufModel) -> None:
    needed = plan_of(gguf).needed_bytes
    check_memory(plan_of(gguf, memory=Memory(GIB, needed, None)))
    with pytest.raises(OutOfMemoryError):
        check_memory(plan_of(gguf, memory=Memory(GIB, needed - 1, None)))


def test_too_much_is_refused_with_the_numbers_and_the_cache_that_fits(gguf: GgufModel) -> None:
    memory = Memory(GIB, GIB, "/sys/fs/cgroup/pod")
    plan = plan_of(gguf, replace(NUMBERS, cache_lens=1 << 20), memory)
    with pytest.raises(OutOfMemoryError) as raised:
        check_memory(plan)
    assert raised.value.exit_code == 4
    assert re.fullmatch(
        r"small-v3 needs 1\.\d GiB \(weights [\d.]+ MiB, KV cache 960\.0 MiB, work buffers .*, tables .*, program .*"
        r"\), 1\.0 GiB, the limit of cgroup /sys/fs/cgroup/pod available; "
        rf"the largest cache_lens that fits is {plan.max_cache_lens}",
        str(raised.value),
    )
    check_memory(plan_of(gguf, replace(NUMBERS, cache_lens=plan.max_cache_lens), memory))


def test_a_model_that_never_fits_gets_no_advice_to_shrink_the_cache(gguf: GgufModel) -> None:
    message = "1.0 MiB available, too little for any cache_lens; use a machine with more memory, lower "
    with pytest.raises(OutOfMemoryError, match=f"{message}prefill_chunk_size, or use a model with fewer bits"):
        check_memory(plan_of(gguf, memory=Memory(GIB, 1 << 20, None)))
    with pytest.raises(OutOfMemoryError, match="for any cache_lens; raise that limit, lower chunk_size, or use"):
        check_memory(plan_of(gguf, replace(NUMBERS, chunk_size=128), Memory(GIB, 1 << 20, "/sys/fs/cgroup/pod")))


def test_the_text_names_every_row_and_the_sum(gguf: GgufModel) -> None:
    text = render(plan_of(gguf, rules="- match: {name: '^model$'}\n  replace: {kwargs: {generate_device: cpu}}"))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "small-v3"
    assert "routed experts cpu Q6_K 1 420.0 KiB" in lines
    assert any(line.startswith("KV cache ") and "1024 tokens and the null block" in line for line in lines)
    assert "rule 1 (name: ^model$): 1 module, model the first" in lines
    assert "available 32.0 GiB of the machine's memory" in lines
    assert lines[-1] == "It fits."


def test_a_shadowed_rule_is_reported_as_such(gguf: GgufModel) -> None:
    rule = "- match: {name: lm_head}\n  replace: {kwargs: {generate_device: cpu}}\n"
    assert rule_lines(plan_of(gguf, rules=rule * 2).placement) == [
        "rule 1 (name: lm_head): 1 module, lm_head the first",
        "rule 2 (name: lm_head): shadowed: everything it matches went to rule 1",
    ]


# --- the command ------------------------------------------------------------------------------------------------


def config_for(gguf_path: Path, *, rules: Path | None = None, cache_lens: int = 32768) -> Config:
    return Config(
        model=ModelConfig(gguf_path=gguf_path, optimize_config_path=rules),
        scheduling=SchedulingConfig(cache_lens=cache_lens),
    )


def test_the_command_prints_the_plan_as_text_and_as_json(gguf: GgufModel) -> None:
    text, data = io.StringIO(), io.StringIO()
    assert run(config_for(gguf.path), out=text) == 0
    assert text.getvalue().startswith("small-v3\n")
    assert run(config_for(gguf.path), as_json=True, out=data) == 0
    found = json.loads(data.getvalue())
    expected = to_json(plan_for(config_for(gguf.path), gguf, SPEC))
    assert found["memory"] == expected["memory"]
    assert found["weights"] == expected["weights"]
    assert found["needed_bytes"] == sum(found["memory"].values())
    assert found["fits"] is True


def test_the_command_plans_the_built_in_model_by_default() -> None:
    out = io.StringIO()
    assert run(Config(), out=out) == 0
    assert "It fits." in out.getvalue()


def test_the_command_prints_and_then_rejects_a_plan_that_does_not_fit(gguf: GgufModel) -> None:
    out = io.StringIO()
    with pytest.raises(OutOfMemoryError):
        run(config_for(gguf.path, cache_lens=1 << 30), out=out)
    assert re.search(r"It does not fit\. \S+ GiB more host memory is needed\.\n$", out.getvalue())


def test_the_command_rejects_the_same_options_as_serve(tmp_path: Path, gguf: GgufModel) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("- match: {name: nothing_like_it}\n  replace: {class: default}\n")
    with pytest.raises(ConfigError, match=r"rule 1 \(name: nothing_like_it\) matches no module of this model"):
        run(config_for(gguf.path, rules=rules), out=io.StringIO())
    broken = write_model(tmp_path / "broken.gguf", SPEC, shapes={"output_norm.weight": None})
    with pytest.raises(ModelError, match=r"broken\.gguf: tensor output_norm\.weight: is missing"):
        run(config_for(broken), out=io.StringIO())
