"""A model's GPU memory: computed without a GPU, compared with a loaded model, and rejected with numbers."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ballast import cli
from ballast._core import kernels
from ballast.config.options import Config, MachineConfig, ModelConfig, SchedulingConfig
from ballast.errors import ConfigError, OutOfMemoryError
from ballast.host import gpu
from ballast.host.gpu import check_device
from ballast.host.machine import Memory
from ballast.host.sizes import human
from ballast.model.hybrid.attention.device_kv_pool import DeviceKvPool
from ballast.model.hybrid.experts.products.expert_panels import ExpertPanels
from ballast.model.hybrid.graphs.decode_graphs import MAX_CAPTURED
from ballast.model.hybrid.panels.product_sizes import SCRATCH_BYTES
from ballast.model.hybrid.sparse.sizes import MAX_CHOSEN, SCORE_BYTES
from ballast.model.hybrid.streaming.chunks import chunks_for
from ballast.model.hybrid.streaming.host_memory import panels_of
from ballast.model.hybrid.streaming.streamed_experts import StreamedExperts
from ballast.model.hybrid.weights import load_hybrid_weights
from ballast.model.kv_pool import num_kv_blocks, num_state_slots
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.feed_forward import EXPERTS
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.plane import row_bytes
from ballast.model.layers.short_rows import ShortRows
from ballast.model.layers.stream import GatedStreamSpec
from ballast.model.metadata import read_spec
from ballast.model.modules import module_tree
from ballast.model.packed_tensors import LayerTensors, Packing, Tensors
from ballast.model.residence import weight_memory
from ballast.model.spec import ModelSpec
from ballast.model.tensors import layer_tensors
from ballast.moe.device_rules import NO_RULES
from ballast.moe.rule_file import read_placement
from ballast.plan import check_memory, command, plan_for, planned, render, rule_lines, run, settle, to_json
from ballast.plan.gpus import device as device_plan
from ballast.plan.gpus import work
from ballast.plan.gpus.device import gpu_cache
from ballast.plan.gpus.device_layers import DeviceLayers
from ballast.plan.gpus.gpu_experts import GpuExpertOptions
from ballast.plan.gpus.gpu_limits import why_not_fp8
from ballast.plan.gpus.hybrid import make_hybrid_plan
from ballast.plan.memory import DeviceMemory, MemoryPlan, Numbers
from ballast.plan.streaming import step_choices
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models import cpu_platform as cpu_platform  # buffers on the CPU have a platform
from devkit.models.changed_spec import changed
from devkit.models.counted_linears import CountedLinears
from devkit.models.gguf_files import common_types, write_hollow_model
from devkit.models.specs.deepseek import R1_SPEC, V32_671B_SPEC
from devkit.models.specs.deepseek4 import V4_FLASH_SPEC
from devkit.models.specs.glm import GLM53_FLASH_SPEC
from devkit.models.specs.qwen3 import FLASH_NEXT_125B_SPEC, QWEN3_235B_SPEC
from devkit.models.sums_of_calls import sums_of_calls
from devkit.models.written import MakeTiny

GIB = 1 << 30
FAST = kernels.usable_isas()[0]
NUMBERS = Numbers(cache_lens=32768, block_tokens=32, max_batch_size=4, chunk_size=256, prefill_chunk_size=256, isa=FAST)
HOST = Memory(1024 * GIB, 512 * GIB, None)


@pytest.fixture(scope="module")
def r1(tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    file = tmp_path_factory.mktemp("r1") / "r1.gguf"
    return open_gguf(write_hollow_model(file, R1_SPEC, common_types(R1_SPEC)))


def r1_plan(r1: GgufModel, vram: int = 24 * GIB, numbers: Numbers = NUMBERS, rules: str = "") -> MemoryPlan:
    placement = NO_RULES
    if rules:
        file = r1.path.parent / "rules.yaml"
        file.write_text(rules)
        placement = read_placement(file, module_tree(R1_SPEC))
    return make_hybrid_plan(
        r1, R1_SPEC, numbers, HOST, [DeviceMemory("cuda:0", vram, "the limit")], placement=placement
    )


def use(plan: MemoryPlan, name: str) -> int:
    assert plan.gpus is not None
    [found] = [row.num_bytes for row in plan.devices[0].uses if row.name == name]
    return found


def test_r1_with_a_cache_of_32768_tokens_fits_a_gpu_of_24_gib(r1: GgufModel) -> None:
    plan = r1_plan(r1)
    check_memory(plan)
    assert plan.gpus is not None
    assert plan.gpus.needed_bytes <= 24 * GIB
    devices = {row.group: row.device for row in plan.weights}
    assert {group for group, device in devices.items() if device == "cpu"} == {"embedding", "routed experts"}
    assert use(plan, "KV cache") == (32768 + 32) * 576 * 61 * 2
    assert 360 * GIB < plan.needed_bytes < 420 * GIB, "experts of 256 · 58 layers at 4.5 to 6.6 bits a weight"


def test_v32_with_a_cache_of_32768_tokens_and_streamed_experts_fits_a_gpu_of_24_gib(tmp_path: Path) -> None:
    file = write_hollow_model(tmp_path / "v32.gguf", V32_671B_SPEC, common_types(V32_671B_SPEC))
    numbers = replace(NUMBERS, prefill_chunk_size=8192, streams_experts=True, threads_per_node=(16,))
    devices = [DeviceMemory("cuda:0", 24 * GIB, "the limit")]
    plan = make_hybrid_plan(open_gguf(file), V32_671B_SPEC, numbers, HOST, devices)
    check_memory(plan)
    assert use(plan, "KV cache") == (32768 + 32) * 61 * (576 + 128) * 2
    scores, chosen = 128 << 20, 1024 * 2048 * 4
    assert use(plan, "work buffers") >= scores + chosen + 8192 * 6 * 7168 * 4


def test_qwen3_235b_with_a_cache_of_32768_tokens_and_streamed_experts_fits_a_gpu_of_24_gib(tmp_path: Path) -> None:
    file = write_hollow_model(tmp_path / "qwen3.gguf", QWEN3_235B_SPEC, common_types(QWEN3_235B_SPEC))
    numbers = replace(NUMBERS, prefill_chunk_size=8192, streams_experts=True)
    devices = [DeviceMemory("cuda:0", 24 * GIB, "the limit")]
    plan = make_hybrid_plan(open_gguf(file), QWEN3_235B_SPEC, numbers, HOST, devices)
    check_memory(plan)
    assert use(plan, "KV cache") == (32768 + 32) * 2 * (4 * 128) * 94 * 2
    queries, keys_and_values, hidden = 64 * 128, 2 * 4 * 128, 4096
    of_attention = 4096 * (queries * (2 * 4 + 2 + 4 + 2 + 6) + keys_and_values * 4)
    assert use(plan, "work buffers") >= of_attention + 8192 * 6 * hidden * 4


def test_the_largest_cache_named_fits_and_a_block_more_does_not(r1: GgufModel) -> None:
    plan = r1_plan(r1)
    assert plan.gpus is not None
    most = plan.gpus.max_cache_lens
    check_memory(r1_plan(r1, numbers=replace(NUMBERS, cache_lens=most)))
    with pytest.raises(OutOfMemoryError):
        check_memory(r1_plan(r1, numbers=replace(NUMBERS, cache_lens=most + 32)))


def test_a_gpu_too_small_is_refused_with_every_number(r1: GgufModel) -> None:
    with pytest.raises(OutOfMemoryError) as raised:
        check_memory(r1_plan(r1, vram=8 * GIB))
    assert raised.value.exit_code == 4
    message = str(raised.value)
    assert message.startswith("DeepSeek-R1's shape needs ")
    assert " GiB on cuda:0 (dense weights " in message
    assert "for any cache_lens; stop other programs that use it or use a GPU with more memory, lower " in message
    with pytest.raises(OutOfMemoryError, match=r"the largest cache_lens that fits is \d+$"):
        check_memory(r1_plan(r1, numbers=replace(NUMBERS, cache_lens=1 << 20)))


@pytest.mark.parametrize(
    ("numbers", "wanted", "options"),
    [
        (NUMBERS, GpuExpertOptions(), "chunk_size or max_batch_size"),
        (replace(NUMBERS, max_batch_size=256), GpuExpertOptions(), "max_batch_size or chunk_size"),
        (replace(NUMBERS, prefill_chunk_size=4096), GpuExpertOptions(), "prefill_chunk_size or max_batch_size"),
        (NUMBERS, GpuExpertOptions(most=2000), "gpu_experts or chunk_size or max_batch_size"),
    ],
)
def test_a_refusal_names_the_options_that_would_help_most_first(
    r1: GgufModel, numbers: Numbers, wanted: GpuExpertOptions, options: str
) -> None:
    devices = [DeviceMemory("cuda:0", 8 * GIB, "the limit set by vram_limit", "vram_limit")]
    plan = make_hybrid_plan(r1, R1_SPEC, numbers, HOST, devices, wanted)
    message = f"for any cache_lens; raise vram_limit, lower {options}, or use a model with fewer bits per weight"
    with pytest.raises(OutOfMemoryError, match=message):
        check_memory(plan)


def test_text_and_json_show_gpu_and_host(r1: GgufModel) -> None:
    plan = r1_plan(r1)
    lines = [" ".join(line.split()) for line in render(plan).splitlines()]
    assert "Memory of the host" in lines
    assert "Memory of cuda:0" in lines
    assert "available 24.0 GiB the limit" in lines
    assert lines[-1] == "It fits."
    device = to_json(plan)["device"]
    assert device["needed_bytes"] == sum(device["memory"].values())
    assert device["fits"] is True


def test_rules_for_an_impossible_device_are_reported(r1: GgufModel) -> None:
    usual = """
- match: {name: '^model\\.layers\\..*\\.mlp\\.experts$'}
  replace: {kwargs: {generate_device: cpu}}
- match: {name: '^model\\.embed_tokens$'}
  replace: {kwargs: {generate_device: cpu}}
- match: {name: '.*'}
  replace: {kwargs: {generate_device: cuda}}
"""
    assert not any("otherwise" in line for line in rule_lines(r1_plan(r1, rules=usual).placement))
    odd = "- match: {name: '^lm_head$'}\n  replace: {kwargs: {generate_device: cpu}}\n"
    assert any(
        "1 modules are not placed as their rules request" in line
        for line in rule_lines(r1_plan(r1, rules=odd).placement)
    )


@pytest.mark.parametrize("whole_layers", [0, 1])
@pytest.mark.parametrize(
    ("arch", "mla", "quant"),
    [
        ("v3", "split", "q4_k"),
        ("v2lite", "joint", "q8_0"),
        ("glm5", "split", "q4_k"),
        ("gptoss", "split", "mxfp4"),
        ("step35", "split", "q4_k"),
        ("mimov2", "split", "q8_0"),
        ("qwen3next", "split", "q4_k"),
        ("glm53flash", "split", "q8_0"),
        ("qwen38flashnext", "split", "q8_0"),
        ("v4", "split", "q8_0"),
    ],
)
def test_the_plan_counts_loaded_tensors(written: MakeTiny, arch: str, mla: str, quant: str, whole_layers: int) -> None:
    gguf = open_gguf(written(arch=arch, mla=mla, quant=quant).gguf)
    spec = read_spec(gguf)
    on_device = CountedLinears()
    pool = kernels.ThreadPool(1)
    weights = load_hybrid_weights(
        gguf,
        spec,
        spec.vocab_size,
        Packing(pool, FAST, 2),
        [on_device.loader(lambda index, _: index < whole_layers)] * spec.num_layers,
        lambda _: None,
    )
    routers = len(spec.routed_layers) * spec.routing.num_experts * spec.hidden * 4
    indexers = [layer.mixer.index for layer in spec.layers if isinstance(layer.mixer, LatentSpec)]
    own = [each for each in indexers if each and each.has_indexer]
    routers += sum(each.num_heads + (each.key_dim if each.pool > 1 else 0) for each in own) * spec.hidden * 4
    of_entries = [layer.mixer.index for layer in spec.layers if isinstance(layer.mixer, CompressedSpec)]
    routers += sum(each.num_heads + 2 * each.key_dim for each in of_entries if each) * spec.hidden * 4
    vectors = sum(
        info.num_bytes
        for info in gguf.tensors.values()
        if len(info.shape) == 1
        or any(name in info.name for name in ("conv1d", "_ape", "tid2eid"))
        or ("hc_" in info.name and not isinstance(spec.stream, GatedStreamSpec))
    )
    plan = make_hybrid_plan(
        gguf,
        spec,
        NUMBERS,
        HOST,
        [DeviceMemory("cuda:0", 8 * GIB, "the limit")],
        GpuExpertOptions(whole_layers * spec.routing.num_experts),
    )
    # The few betas and alphas of a layer share a panel of 16 rows, which the plan counts for each.
    alphas = [info for name, info in gguf.tensors.items() if "ssm_alpha" in name]
    shared = sum(kernels.packed_nbytes(int(info.ggml_type), num_rows=16, cols=spec.hidden) for info in alphas)
    assert use(plan, "dense weights") == on_device.num_bytes + routers + vectors + shared
    memory = weight_memory(weights)
    in_host = sum(size for ranges in (*memory.experts.values(), memory.others) for _, size in ranges)
    in_host_layers = [spec.layers[layer].experts for layer in spec.routed_layers[whole_layers:]]
    biases = sum(experts.num_biases(spec.hidden) * 4 for experts in in_host_layers if experts is not None)
    assert plan.uses[0].num_bytes == in_host + biases


def test_the_plan_counts_the_cache_that_is_made(r1: GgufModel) -> None:
    numbers = replace(NUMBERS, cache_lens=100)
    kv = DeviceKvPool(R1_SPEC.planes[:2], num_kv_blocks(100, 32), 32, torch.float16, torch.device("cpu"))
    per_layer = sum(kept.numel() * kept.element_size() for kept in kv.tensors) // 2
    assert use(r1_plan(r1, numbers=numbers), "KV cache") == per_layer * R1_SPEC.num_layers


@pytest.mark.parametrize("arch", ["qwen3", "mimov2", "v3"])
def test_the_plan_counts_the_cache_of_8_bits_that_is_made(written: MakeTiny, beside_a_gpu: None, arch: str) -> None:
    gguf = open_gguf(written(arch=arch, quant="q8_0").gguf)
    spec, found = read_spec(gguf), {}
    for kv_type, dtype in (("fp16", torch.float16), ("fp8", torch.float8_e4m3fn)):
        options = ["--gguf_path", str(gguf.path), "--cache_lens=8192", "--kv_type", kv_type]
        _, plan = settle(cli.serve_config(options), gguf, spec)
        cache, num_blocks = gpu_cache(DeviceLayers(spec, range(spec.num_layers)), plan.numbers), 8192 // 32
        kv = DeviceKvPool(spec.planes, num_blocks, 32, dtype, torch.device("cpu"), cache.window_blocks(num_blocks))
        assert use(plan, "KV cache") == sum(kept.nbytes for kept in kv.tensors)
        assert plan.gpus is not None
        found[kv_type] = cache.token_bytes, plan.gpus.max_cache_lens
    assert found["fp16"][0] * 0.5 < found["fp8"][0] < found["fp16"][0] * 0.65
    assert found["fp8"][1] > 1.5 * found["fp16"][1]


def test_r1_in_24_gib_holds_a_long_context_in_8_bits(r1: GgufModel) -> None:
    found = [r1_plan(r1, numbers=replace(NUMBERS, kv_type=kv_type)) for kv_type in ("fp16", "fp8")]
    fp16, fp8 = (plan.gpus.max_cache_lens for plan in found if plan.gpus is not None)
    assert fp8 > 1.7 * fp16
    assert fp8 > 60_000


def test_latents_of_8_bits_have_deepseeks_published_layout() -> None:
    [plane] = R1_SPEC.planes[0]
    assert row_bytes([plane], "fp8") == 656
    layout = ShortRows.of_latents(512, 64)
    assert (layout.scales_at, layout.wide_at, layout.row_bytes) == (512, 528, 656)


def test_models_without_kernels_for_8_bits_are_refused(written: MakeTiny, beside_a_gpu: None) -> None:
    gguf = open_gguf(written(arch="v32", quant="q8_0").gguf)
    config = cli.serve_config(["--gguf_path", str(gguf.path), "--kv_type", "fp8"])
    with pytest.raises(ConfigError, match=r"kv_type=fp8: .*attend to selected positions.*use kv_type=fp16"):
        settle(config, gguf, read_spec(gguf))
    first, *others = R1_SPEC.layers
    assert isinstance(first.mixer, LatentSpec)
    odd = replace(R1_SPEC, layers=(replace(first, mixer=replace(first.mixer, kv_lora_rank=384)), *others))
    assert why_not_fp8(R1_SPEC) is None
    assert "have 384 numbers" in str(why_not_fp8(odd))


def test_workspaces_are_those_of_the_kernels_and_graphs_grow_with_the_batch(r1: GgufModel) -> None:
    four, sixteen = (r1_plan(r1, numbers=replace(NUMBERS, max_batch_size=size)) for size in (4, 16))
    assert use(four, "kernel workspaces") == use(sixteen, "kernel workspaces") > SCRATCH_BYTES
    assert use(four, "CUDA graphs") < use(sixteen, "CUDA graphs") < 1 * GIB
    tiled, sliced = (r1_plan(r1, numbers=replace(NUMBERS, max_batch_size=size)) for size in (159, 160))
    assert use(sliced, "CUDA graphs") - use(tiled, "CUDA graphs") > SCRATCH_BYTES
    assert device_plan._MAX_CAPTURED == MAX_CAPTURED
    most, beyond = (r1_plan(r1, numbers=replace(NUMBERS, max_batch_size=MAX_CAPTURED + more)) for more in (0, 50))
    assert use(most, "CUDA graphs") == use(beyond, "CUDA graphs")
    assert most.gpus is not None
    assert beyond.gpus is not None
    assert most.devices[0].limit == beyond.devices[0].limit
    for plan in (four, sixteen):
        assert plan.gpus is not None
        limit = plan.devices[0].limit
        assert limit.torch_bytes + limit.outside_bytes == limit.limit_bytes == 24 * GIB
        assert use(plan, "CUDA") < limit.outside_bytes < use(plan, "CUDA") + use(plan, "CUDA graphs")


# --- long steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk_size", "prefill_chunk_size", "stream_from_tokens", "cache_lens", "expected"),
    [
        (
            256,
            None,
            None,
            None,
            [
                *((size, True) for size in (16384, 8192, 4096, 2048, 1024, 512, 256)),
                (256, False),
            ],
        ),
        (3000, None, 2000, None, [(16384, True), (8192, True), (4096, True), (3000, True)]),
        (256, None, 0, None, [(256, False)]),
        (256, 1000, None, None, [(1000, True), (1000, False)]),
        (256, 1000, 64, None, [(1000, True)]),
        (256, 1000, 0, None, [(1000, False)]),
        (256, None, 1500, None, [(16384, True), (8192, True), (4096, True), (2048, True)]),
        (256, None, None, 2048, [*((size, True) for size in (2048, 1024, 512, 256)), (256, False)]),
        (256, None, None, 100, [*((size, True) for size in (1024, 512, 256)), (256, False)]),
        (
            256,
            None,
            None,
            1 << 20,
            [*((size, True) for size in (16384, 8192, 4096, 2048, 1024, 512, 256)), (256, False)],
        ),
        (256, None, 1500, 1024, [(2048, True)]),
        (256, 16384, None, 1024, [(16384, True), (16384, False)]),
        (4096, None, None, 2048, [(4096, True), (4096, False)]),
    ],
)
def test_the_longest_step_is_tried_first_and_streaming_is_dropped_last(
    chunk_size: int,
    prefill_chunk_size: int | None,
    stream_from_tokens: int | None,
    cache_lens: int | None,
    expected: list[tuple[int, bool]],
) -> None:
    assert step_choices(chunk_size, prefill_chunk_size, stream_from_tokens, cache_lens) == expected


@pytest.mark.parametrize(("prefill_chunk_size", "longest"), [(None, 16384), (512, 512)])
def test_streaming_from_more_tokens_than_a_step_has_is_refused(prefill_chunk_size: int | None, longest: int) -> None:
    with pytest.raises(ConfigError, match=rf"stream_from_tokens=20000: .* the longest has {longest} tokens"):
        step_choices(256, prefill_chunk_size, 20_000, cache_lens=None)


@pytest.mark.parametrize(
    ("vram", "stream_from_tokens", "pcie_share", "reported", "untold"),
    [
        (80 * GIB, None, None, ["No expert is streamed: all are in the GPU's memory."], ["expert buffers", "PCIe"]),
        (80 * GIB, 1000, 1.0, ["No expert is streamed"], ["expert buffers", "PCIe", "stream_from_tokens"]),
        (
            5 * GIB,
            None,
            None,
            ["GFLOP/s; measured at start.", "1 threads; measured at start."],
            ["is set to", "Set by"],
        ),
        (
            5 * GIB,
            1000,
            1.0,
            ["; stream_from_tokens is set to 1000.", "GPU reads 1 of a step's", "  Set by pcie_share."],
            ["measured at start"],
        ),
        (
            5 * GIB,
            0,
            0.0,
            ["none is streamed, because stream_from_tokens is 0."],
            ["expert buffers", "PCIe", "measure"],
        ),
    ],
)
def test_the_plan_shows_streaming_pcie_share_and_set_options(
    written: MakeTiny,
    vram: int,
    stream_from_tokens: int | None,
    pcie_share: float | None,
    reported: list[str],
    untold: list[str],
) -> None:
    gguf = open_gguf(written().gguf)
    config = config_for(gguf.path, vram)
    experts = None if vram > 8 * GIB else 1
    machine = replace(config.machine, gpu_experts=experts, stream_from_tokens=stream_from_tokens, pcie_share=pcie_share)
    scheduling = replace(config.scheduling, prefill_chunk_size=1024)
    plan = plan_for(replace(config, machine=machine, scheduling=scheduling), gguf, read_spec(gguf))
    check_memory(plan)
    text = render(plan)
    assert [part for part in reported if part not in text] == []
    assert [part for part in untold if part in text] == []
    device = to_json(plan)["device"]
    assert (device["streaming"] is None) == ("expert_buffers" not in device["memory"])


def test_the_plan_says_why_dense_weights_keep_their_types(r1: GgufModel) -> None:
    plan = r1_plan(r1, vram=80 * GIB)
    assert plan.gpus is not None
    params = sum(math.prod(info.shape) for name, info in r1.tensors.items() if "_exps" not in name)
    params -= math.prod(r1.tensors["token_embd.weight"].shape)
    assert plan.gpus.bfloat16_bytes == 2 * params
    text = render(plan)
    assert f"keep the file's types, even if memory is free: bfloat16 would take {human(2 * params)}" in text


@pytest.mark.parametrize("fast", kernels.fast_isas(), ids=lambda fast: str(fast.name))
def test_r1_streams_steps_of_4096_tokens_on_a_gpu_of_24_gib(r1: GgufModel, fast: kernels.FastIsa) -> None:
    numbers = replace(NUMBERS, isa=fast.name, prefill_chunk_size=4096, streams_experts=True, threads_per_node=(16,))
    plan = r1_plan(r1, numbers=numbers)
    check_memory(plan)
    assert use(plan, "expert buffers") == 8 * 256 << 20
    assert plan.gpus is not None
    stream = plan.gpus.streaming
    assert stream is not None
    assert stream.pass_bytes == sum(row.num_bytes for row in plan.weights if row.group == "routed experts")
    assert stream.pass_s == pytest.approx(16, rel=0.1)
    speed = fast.thread_flops / 110e9  # relative to AVX-512
    assert 500 * speed < stream.from_tokens < 2000 * speed
    lines = render(plan).splitlines()
    assert "  have up to 4096 prompt tokens, while other requests decode." in lines
    assert any(f"which pays off from about {stream.from_tokens} tokens:" in line for line in lines)
    assert to_json(plan)["device"]["streaming"]["from_tokens"] == stream.from_tokens
    message = "expert buffers 2.0 GiB"
    with pytest.raises(OutOfMemoryError, match=message):
        check_memory(r1_plan(r1, vram=12 * GIB, numbers=numbers))


def test_the_plan_includes_all_buffers(written: MakeTiny) -> None:
    gguf = open_gguf(written(arch="v3", mla="split", quant="q4_k").gguf)
    spec = read_spec(gguf)
    tensors = Tensors(gguf, Packing(kernels.ThreadPool(1), FAST, 2))
    layers = [LayerTensors(tensors, layer_tensors(spec, i)).experts(EXPERTS) for i in spec.routed_layers]
    parts = [panels_of(layer) for layer in layers]
    num_experts = [spec.routing.num_experts] * len(layers)
    streamed = StreamedExperts(chunks_for(parts, 1), num_experts, sums_of_calls(ExpertPanels), torch.device("cpu"))
    plan = make_hybrid_plan(
        gguf,
        spec,
        replace(NUMBERS, streams_experts=True),
        HOST,
        [DeviceMemory("cuda:0", GIB, "the limit")],
    )
    assert streamed.num_bytes <= use(plan, "expert buffers") <= 2 * streamed.num_bytes
    assert plan.gpus is not None
    assert plan.gpus.streaming is not None
    assert plan.gpus.streaming.pass_bytes == streamed.pass_bytes


# --- the commands -----------------------------------------------------------------------------------------------


def config_for(file: Path, vram_limit: int | None) -> Config:
    return Config(
        model=ModelConfig(gguf_path=file),
        scheduling=SchedulingConfig(cache_lens=8192),
        machine=MachineConfig(
            device="cuda:15", vram_limit=None if vram_limit is None else (vram_limit,), cpu_threads=1, gpu_experts=0
        ),
    )


def test_the_command_plans_for_a_gpu_that_is_not_present(written: MakeTiny) -> None:
    file = written().gguf
    out = io.StringIO()
    assert run(config_for(file, 2 * GIB), out=out) == 0
    assert "Memory of cuda:15" in out.getvalue()
    assert "the limit set by vram_limit" in out.getvalue()
    with pytest.raises(OutOfMemoryError, match="on cuda:15"):
        run(config_for(file, GIB), out=io.StringIO())
    with pytest.raises(ConfigError, match=r"vram_limit=auto: cuda:15 is not in this machine, .* set a size such as 24"):
        run(config_for(file, None), out=io.StringIO())


def test_an_unsupported_model_is_reported_before_gpu_memory_is_queried(written: MakeTiny) -> None:
    gguf = open_gguf(written(arch="v32").gguf)
    with pytest.raises(ConfigError, match=r"device=cuda:15: .*at most 8192; the CPU has no limit, with device=cpu"):
        plan_for(config_for(gguf.path, None), gguf, choosing_too_many(gguf))


def choosing_too_many(gguf: GgufModel) -> ModelSpec:
    """What a file says, but for a choice of one position more than a GPU's kernels take."""
    spec = read_spec(gguf)
    chosen = replace(spec.choices[0], top_k=MAX_CHOSEN + 1)
    return changed(spec, index=chosen)


def test_insufficient_host_memory_does_not_shorten_planned_steps(r1: GgufModel) -> None:
    config = config_for(r1.path, 24 * GIB)
    config = replace(config, scheduling=SchedulingConfig(prefill_chunk_size=None))
    plan = plan_for(config, r1, R1_SPEC)
    assert plan.numbers.prefill_chunk_size == 16384
    assert plan.numbers.streams_experts
    assert plan.gpus is not None
    assert plan.gpus.needed_bytes <= 24 * GIB


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    file = tmp_path_factory.mktemp("qwen3") / "qwen3.gguf"
    return open_gguf(write_hollow_model(file, QWEN3_235B_SPEC, common_types(QWEN3_235B_SPEC)))


def qwen3_plan(
    qwen3: GgufModel, batch: int, cache_lens: int | None, stream_from_tokens: int | None = None
) -> MemoryPlan:
    config = config_for(qwen3.path, 24 * GIB)
    scheduling = SchedulingConfig(
        prefill_chunk_size=None, max_batch_size=batch, max_new_tokens=256, cache_lens=cache_lens
    )
    machine = replace(config.machine, stream_from_tokens=stream_from_tokens, kv_host_bytes=0)
    return plan_for(replace(config, scheduling=scheduling, machine=machine), qwen3, QWEN3_235B_SPEC)


def test_a_derived_cache_size_leaves_memory_for_streamed_experts(qwen3: GgufModel) -> None:
    plan = qwen3_plan(qwen3, batch=64, cache_lens=None)
    assert plan.gpus is not None
    assert plan.gpus.fits
    assert plan.numbers.streams_experts
    assert plan.gpus.streaming_cache_lens == 0
    without = qwen3_plan(qwen3, batch=64, cache_lens=None, stream_from_tokens=0)
    assert not without.numbers.streams_experts
    assert plan.numbers.cache_lens >= without.numbers.cache_lens // 2
    assert plan.numbers.prefill_chunk_size >= 4096


def test_a_given_cache_size_that_prevents_streaming_is_kept_and_reported(qwen3: GgufModel) -> None:
    largest = qwen3_plan(qwen3, batch=64, cache_lens=None, stream_from_tokens=0).numbers.cache_lens
    plan = qwen3_plan(qwen3, batch=64, cache_lens=largest)
    assert plan.gpus is not None
    assert plan.numbers.cache_lens == largest
    assert not plan.numbers.streams_experts
    smaller = plan.gpus.streaming_cache_lens
    assert 0 < smaller < largest
    assert f"They would fit with cache_lens = {smaller}." in render(plan)
    assert qwen3_plan(qwen3, batch=64, cache_lens=smaller).numbers.streams_experts
    assert not qwen3_plan(qwen3, batch=64, cache_lens=smaller + 32).numbers.streams_experts
    assert to_json(plan)["device"]["streaming_cache_lens"] == smaller


def test_kernels_that_pack_nothing_are_refused(written: MakeTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALLAST_CPU_ISA", "reference")
    with pytest.raises(ConfigError, match="BALLAST_CPU_ISA=reference: packs no weights"):
        run(config_for(written().gguf, GIB), out=io.StringIO())


def test_serving_on_a_missing_gpu_exits_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"device=cuda:15: .*; device=cpu does not need a GPU"):
        check_device("cuda:15")
    check_device("cpu")
    assert cli.exit_code(lambda: cli.main(["plan", "--device", "cpu", "--vram_limit", "8GiB"])) == 2
    assert "vram_limit=8GiB: limits a GPU's memory, and device=cpu uses no GPU" in capsys.readouterr().err


# --- device=auto ------------------------------------------------------------------------------------------------


def test_without_a_gpu_auto_is_the_cpu_and_lists_unused_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "why_no_driver_device", lambda: "NVIDIA's driver has no GPU")
    assert cli.main(["plan", "--vram_limit", "24GiB", "--pcie_share", "0", "--gpu_experts", "7"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("Computes on cpu: NVIDIA's driver ")
    assert first.endswith("Not used: vram_limit, gpu_experts.")


@pytest.mark.parametrize(
    ("free", "isa", "device", "reason"),
    [
        (8 * GIB, FAST, "cuda:0", "this machine has a GPU"),
        (GIB, FAST, "cpu", r"cuda:0 is too small: 1\.\d GiB needed, 1\.0 GiB, free memory available"),
        (8 * GIB, "reference", "cpu", "BALLAST_CPU_ISA=reference packs no weights, and cuda:0 needs packed ones"),
    ],
)
def test_auto_is_the_cpu_if_the_gpu_is_not_supported(
    written: MakeTiny, monkeypatch: pytest.MonkeyPatch, free: int, isa: str, device: str, reason: str
) -> None:
    monkeypatch.setattr(gpu, "why_no_driver_device", lambda: None)
    monkeypatch.setattr(gpu, "why_unusable", lambda _: None)
    monkeypatch.setattr(command, "free_vram", lambda _: free)
    monkeypatch.setenv("BALLAST_CPU_ISA", isa)
    gguf = open_gguf(written().gguf)
    options = ["--gguf_path", str(gguf.path), "--cache_lens", "8192", "--gpu_experts", "1"]
    config, plan = settle(cli.serve_config(options), gguf, read_spec(gguf))
    check_memory(plan)
    assert (config.machine.device, plan.gpus is not None) == (device, device != "cpu")
    assert re.match(reason, config.device_reason)
    assert config.unused_options == (("gpu_experts",) if device == "cpu" else ())
    assert config.scheduling.prefill_chunk_size == (256 if device == "cpu" else 8192)
    insisting = cli.serve_config([*options, "--device", "cuda"])
    if device == "cpu":
        with pytest.raises((OutOfMemoryError, ConfigError)):
            check_memory(settle(insisting, gguf, read_spec(gguf))[1])


def test_a_cpu_without_required_instructions_is_rejected_with_their_names(
    written: MakeTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "why_no_driver_device", lambda: None)
    monkeypatch.setattr(gpu, "why_unusable", lambda _: None)
    monkeypatch.setattr(command, "free_vram", lambda _: 8 * GIB)
    monkeypatch.setattr(command, "_can_pack", lambda: False)
    monkeypatch.setenv("BALLAST_CPU_ISA", "reference")
    gguf = open_gguf(written().gguf)
    options = ["--gguf_path", str(gguf.path), "--cache_lens", "8192"]
    config, _ = settle(cli.serve_config(options), gguf, read_spec(gguf))
    assert config.device_reason.startswith("with cuda:0 the CPU would need avx2, fma, f16c, which packed weights need")
    insisting = cli.serve_config([*options, "--device", "cuda"])
    with pytest.raises(ConfigError, match="device=cuda:0: needs a CPU with avx2, fma, f16c"):
        settle(insisting, gguf, read_spec(gguf))


def test_values_left_to_the_plan_fit(written: MakeTiny) -> None:
    gguf = open_gguf(written().gguf)
    spec = read_spec(gguf)

    def plan(vram: int, prefill_chunk_size: int | None) -> tuple[Config, MemoryPlan]:
        config = config_for(gguf.path, vram)
        config = replace(
            config,
            scheduling=replace(config.scheduling, prefill_chunk_size=prefill_chunk_size),
            machine=replace(config.machine, kv_host_bytes=0),
        )
        made = plan_for(config, gguf, spec)
        return planned(config, made), made

    _, long_steps = plan(8 * GIB, 1024)
    assert long_steps.gpus is not None
    enough = long_steps.gpus.needed_bytes
    for vram, step_tokens, stream_from_tokens in (
        (8 * GIB, 8192, None),
        (enough, 1024, None),
        (enough - 1, 512, None),
        (GIB, 256, 0),
    ):
        config, _ = plan(vram, None)
        assert config.scheduling.prefill_chunk_size == step_tokens
        assert config.machine.stream_from_tokens == stream_from_tokens


@pytest.fixture
def beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "why_no_driver_device", lambda: None)
    monkeypatch.setattr(gpu, "why_unusable", lambda _: None)
    monkeypatch.setattr(command, "free_vram", lambda _: 8 * GIB)
    monkeypatch.setenv("BALLAST_CPU_ISA", FAST)


def test_a_gpu_takes_hyper_connections_and_pools_beside_recurrent_layers(written: MakeTiny, beside_a_gpu: None) -> None:
    gguf = open_gguf(written(arch="glm53flash", quant="q8_0").gguf)
    spec = read_spec(gguf)
    config, plan = settle(cli.serve_config(["--gguf_path", str(gguf.path), "--cache_lens", "8192"]), gguf, spec)
    assert config.machine.device == "cuda:0"
    assert use(plan, "KV cache") == (8192 + plan.numbers.block_tokens) * 2 * (512 + 32) * 2
    slots = num_state_slots(spec.states, 8192, plan.numbers.max_batch_size, on_gpu=True) + 1
    assert use(plan, "recurrent state") == slots * spec.state_bytes


def test_a_gpu_takes_blocks_of_positions_and_ngrams(written: MakeTiny, beside_a_gpu: None) -> None:
    """The n-gram table stays in the file."""
    gguf = open_gguf(written(arch="qwen38flashnext", quant="q8_0").gguf)
    spec = read_spec(gguf)
    config, plan = settle(cli.serve_config(["--gguf_path", str(gguf.path), "--cache_lens", "8192"]), gguf, spec)
    assert config.machine.device == "cuda:0"
    [mixer] = spec.attentions
    assert isinstance(mixer, GroupedSpec)
    assert mixer.index is not None
    slots = 8192 + plan.numbers.block_tokens
    assert use(plan, "KV cache") == slots * 2 * (mixer.kv_width + mixer.index.key_dim // 4) * 2
    num_slots = num_state_slots(spec.states, 8192, plan.numbers.max_batch_size, on_gpu=True) + 1
    assert use(plan, "recurrent state") == num_slots * spec.state_bytes
    assert {row.device for row in plan.weights if row.group == "embedding"} == {"cpu"}
    [table] = [row for row in plan.uses if row.name == "n-gram table"]
    assert table.num_bytes == 0
    assert str(table.detail).endswith("of the file, read by rows through page cache")


def test_a_gpu_has_room_for_gates_and_ngrams() -> None:
    spec = FLASH_NEXT_125B_SPEC
    assert spec.ngram is not None
    without = replace(spec, layers=tuple(replace(layer, stream=None, ngram=None) for layer in spec.layers))
    # Rows, weights of two blocks with products, and rows of the table; experts take most in both.
    added = work.step_bytes(spec, 4096, 1) - work.step_bytes(without, 4096, 1)
    assert added == 4096 * 4 * (4 * 2560 + 3 * 4 + spec.ngram.width)
    # Normed rows, gates and their product in progress.
    assert work._gate_bytes(spec, 4096) == 4096 * 4 * (3 * 4 * 2560 + 3 * 320)
    # Both sides of the convolution, or its input and what 1,024 tokens take that are gated together.
    assert work._ngram_bytes(spec, 8192) == 4096 * 4 * (4 * 2560 + 4 * 2560 + 2560 // 4)
    dense = replace(spec.attentions[0], index=None)
    alone, own = (work._attention_bytes(spec, each, 16, 1) for each in (dense, spec.attentions[0]))
    assert own - alone >= 16 * 4 * (2048 + 3)


def test_a_gpu_has_room_for_several_rows_of_a_stream_and_for_pools() -> None:
    stream = GLM53_FLASH_SPEC.stream
    assert stream is not None
    plain = replace(GLM53_FLASH_SPEC, layers=tuple(replace(layer, stream=None) for layer in GLM53_FLASH_SPEC.layers))
    assert work.step_bytes(GLM53_FLASH_SPEC, 4096, 1) - work.step_bytes(plain, 4096, 1) == 4096 * 4 * (4 * 4096 + 72)
    [mixer] = GLM53_FLASH_SPEC.attentions
    assert isinstance(mixer, LatentSpec)
    assert mixer.index is not None
    alone = replace(mixer, index=replace(mixer.index, pool=1))
    own, other = (work._choice_bytes(GLM53_FLASH_SPEC, each, each.index, 1) for each in (mixer, alone))
    # A token's scores, and what rounds keep of those of 64 and of 16 groups; gates and selected pools.
    assert other - own == 1048576 * 3 + (72 * 2048 - 16 * 512) * 8 - 4 * (128 + 512)


def test_a_gpu_has_room_for_windows_entries_and_rotations(written: MakeTiny, beside_a_gpu: None) -> None:
    gguf = open_gguf(written(arch="v4", quant="q8_0").gguf)
    spec = read_spec(gguf)
    config, plan = settle(cli.serve_config(["--gguf_path", str(gguf.path), "--cache_lens", "8192"]), gguf, spec)
    assert config.machine.device == "cuda:0"
    # Two layers keep an entry and an index key of 4 tokens, one an entry of 128, in the rows of the last 16.
    assert use(plan, "KV cache") == (8192 + plan.numbers.block_tokens) * (2 * (128 + 64) // 4 + 128 // 16) * 2
    slots = num_state_slots(spec.states, 8192, plan.numbers.max_batch_size, on_gpu=True) + 1
    assert use(plan, "recurrent state") == slots * spec.state_bytes
    assert use(plan, "rotations") == min(8192, spec.context_length) * 2 * 32 * 4


def test_the_largest_cache_of_compressed_entries_fits_with_its_rotations(tmp_path: Path) -> None:
    file = write_hollow_model(tmp_path / "v4.gguf", V4_FLASH_SPEC, common_types(V4_FLASH_SPEC))
    gguf, devices = open_gguf(file), [DeviceMemory("cuda:0", 20 * GIB, "the limit")]
    plan = make_hybrid_plan(gguf, V4_FLASH_SPEC, NUMBERS, HOST, devices)
    assert plan.gpus is not None
    most = plan.gpus.max_cache_lens
    for cache_lens, fits in ((most, True), (most + 32, False)):
        numbers = replace(NUMBERS, cache_lens=cache_lens)
        plan = make_hybrid_plan(gguf, V4_FLASH_SPEC, numbers, HOST, devices)
        assert plan.devices[0].fits == fits
    heads = 64 * 512 * 6 * 256  # queries as floats and in half precision, of 256 tokens
    assert use(plan, "work buffers") >= heads + 256 * (6 + 4) * 4096 * 4


@pytest.mark.parametrize(("arch", "with_indexer"), [("v32", 3), ("glm5", 4)])
def test_a_gpu_takes_attention_to_chosen_positions(
    written: MakeTiny, beside_a_gpu: None, arch: str, with_indexer: int
) -> None:
    gguf = open_gguf(written(arch=arch, quant="q8_0").gguf)
    spec = read_spec(gguf)
    config, plan = settle(cli.serve_config(["--gguf_path", str(gguf.path), "--cache_lens", "8192"]), gguf, spec)
    assert config.machine.device == "cuda:0"
    slots = 8192 + plan.numbers.block_tokens
    assert use(plan, "KV cache") == slots * (spec.num_layers * 576 + with_indexer * 128) * 2
    scores = min(1024 * spec.context_length * 4, SCORE_BYTES)
    attention = max(work._attention_bytes(spec, mixer, 16384, 1) for mixer in spec.mixers)
    assert attention >= scores + (1024 * 32 * 4 if arch == "v32" else 0)
    kept = {"v32": 0, "glm5": 16384 * 32 * 4}[arch]  # what layers above share is there while experts are computed
    rows = (16384 * 6 * spec.hidden + 2 * spec.vocab_size) * 4
    assert work.step_bytes(spec, 16384, 1) == rows + kept + work._expert_bytes(spec, 16384)


def test_a_model_that_chooses_too_many_positions_runs_on_the_cpu(written: MakeTiny, beside_a_gpu: None) -> None:
    gguf = open_gguf(written(arch="v32", quant="q8_0").gguf)
    wide = choosing_too_many(gguf)
    options = ["--gguf_path", str(gguf.path), "--cache_lens", "8192"]
    config, plan = settle(cli.serve_config(options), gguf, wide)
    assert (config.machine.device, plan.gpus) == ("cpu", None)
    with pytest.raises(
        ConfigError, match=r"8193 positions, and kernels on a GPU select at most 8192; the CPU .* with dev"
    ):
        settle(cli.serve_config([*options, "--device", "cuda"]), gguf, wide)


@pytest.mark.parametrize("arch", ["gptoss", "step35", "mimov2"])
def test_a_gpu_takes_layers_with_windows(written: MakeTiny, beside_a_gpu: None, arch: str) -> None:
    gguf = open_gguf(written(arch=arch, quant="q8_0").gguf)
    spec = read_spec(gguf)
    config, plan = settle(cli.serve_config(["--gguf_path", str(gguf.path), "--cache_lens", "8192"]), gguf, spec)
    assert config.machine.device == "cuda:0"
    assert plan.gpus is not None
    [device] = plan.devices
    experts = spec.layers[-1].experts
    assert experts is not None
    biases = {each.name: each.num_bytes for each in device.uses}.get("biases of experts", 0)
    num_copies = 1 if plan.gpus.streaming is None else 2
    width = 2 * experts.width + spec.hidden
    of_all = len(spec.routed_layers) * experts.routing.num_experts * width
    assert biases == (num_copies * of_all * 4 if arch == "gptoss" else 0)


@pytest.mark.parametrize("kv_host_bytes", ["0", "auto"])
def test_layers_with_a_window_keep_their_windows_on_a_gpu(
    written: MakeTiny, beside_a_gpu: None, kv_host_bytes: str
) -> None:
    gguf = open_gguf(written(arch="mimov2", quant="q8_0").gguf)
    spec = read_spec(gguf)
    sizes = {"cache_lens": 32768, "chunk_size": 64, "prefill_chunk_size": 512, "kv_host_bytes": kv_host_bytes}
    options = [f"--{name}={value}" for name, value in sizes.items()]
    _, plan = settle(cli.serve_config(["--gguf_path", str(gguf.path), *options]), gguf, spec)
    num_blocks = num_kv_blocks(32768, plan.numbers.block_tokens)
    window_blocks = gpu_cache(DeviceLayers(spec, range(spec.num_layers)), plan.numbers).window_blocks(num_blocks)
    assert window_blocks is not None
    sizes_of_pool = spec.planes, num_blocks, plan.numbers.block_tokens, torch.float16, torch.device("cpu")
    kept = DeviceKvPool(*sizes_of_pool, window_blocks)
    assert use(plan, "KV cache") == sum(tensor.nbytes for tensor in kept.tensors)
    assert use(plan, "KV cache") < sum(tensor.nbytes for tensor in DeviceKvPool(*sizes_of_pool).tensors) // 2


@pytest.mark.parametrize("arch", ["qwen3", "glm45", "glm45air", "minimaxm2"])
def test_a_gpu_takes_grouped_query_attention(written: MakeTiny, beside_a_gpu: None, arch: str) -> None:
    gguf = open_gguf(written(arch=arch, quant="q8_0").gguf)
    spec = read_spec(gguf)
    config, plan = settle(cli.serve_config(["--gguf_path", str(gguf.path), "--cache_lens", "8192"]), gguf, spec)
    assert config.machine.device == "cuda:0"
    assert plan.gpus is not None
    keys_and_values = 2 * (2 * 128)
    slots = 8192 + plan.numbers.block_tokens
    assert use(plan, "KV cache") == slots * keys_and_values * 2 * spec.num_layers
