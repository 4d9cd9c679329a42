"""The speed that a plan tells to expect is held to what was measured, and follows from the machine."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as GgmlType

from ballast import cli
from ballast.config import resolve
from ballast.config.options import Config, MachineConfig, ModelConfig, SchedulingConfig
from ballast.errors import ConfigError, OutOfMemoryError
from ballast.host import bandwidth, doctor
from ballast.host.machine import Memory, read_machine
from ballast.model.spec import ModelSpec
from ballast.moe.expert_skew import ExpertSkew, ExpertUse
from ballast.plan import MemoryPlan, Numbers, command, make_plan, plan_for
from ballast.plan.described import Described, read_pcie, read_rate, read_size
from ballast.plan.reports.shortfall import shortfall_lines
from ballast.plan.reports.speed_report import ASSUMED_GPU_BYTES_PER_S, attention_work, usual_activation_bytes, work_of
from ballast.plan.speed import Rates, Work, decode, prefill
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import common_types, write_hollow_model
from devkit.models.quant_recipes import q4_k_m_types
from devkit.models.specs.deepseek import R1_SPEC, V2_LITE_SPEC
from devkit.models.specs.qwen3 import QWEN3_235B_SPEC, QWEN3_NEXT_80B_SPEC

RESULTS = Path(__file__).parents[3] / "benchmarks/results"
GIB = 1 << 30
H200_BYTES_PER_S, PCIE_BYTES_PER_S = 4.8e12, 50e9
"""Of the machine of the records with a GPU."""

V2_LITE = changed(
    V2_LITE_SPEC,
    name="V2-Lite's shape",
    num_layers=27,
    num_dense_layers=1,
    vocab_size=102400,
    context_length=163840,
    hidden=2048,
    dense_width=10944,
    num_heads=16,
    q_lora_rank=None,
    kv_lora_rank=512,
    nope_dim=128,
    dim=64,
    v_dim=128,
    mla_layout="joint",
    num_experts=64,
    num_experts_used=6,
    num_shared=2,
    width=1408,
)
R1_CUT = changed(R1_SPEC, num_layers=8)
"""As the records have it: the three dense layers and five others."""

RECORDED = [
    ("engine_beside_ik_llama", "2026-11-22T22:25Z", "v2lite"),
    ("engine_beside_ik_llama", "2026-11-22T21:47Z", "v2lite"),
    ("hybrid_decode", "2026-11-22T06:15Z", "r1"),
    ("hybrid_decode", "2026-11-22T06:21Z", "r1"),
    ("hybrid_decode", "2026-11-22T06:19Z", "v2lite"),
    ("hybrid_prefill", "2026-11-22T06:20Z", "r1"),
    ("engine_decode", "2026-11-24T05:25Z", "r1"),
    ("engine_decode", "2026-11-24T05:26Z", "r1"),
    ("engine_decode", "2026-11-24T05:26Z", "v2"),
    ("engine_long_prompt", "2026-11-24T00:33Z", "r1.gguf: prompt of 32768 in passes of 4096"),
]
"""Runs: the records' file, their minute, how their cases begin. Prompts that waited for the GPU's arithmetic are left
out: since then, the experts of long steps are multiplied in half precision."""


def planned(gguf: GgufModel, spec: ModelSpec, gib: int = 1024) -> MemoryPlan:
    numbers = Numbers(cache_lens=4096, block_tokens=32, max_batch_size=4, chunk_size=256, prefill_chunk_size=256)
    return make_plan(gguf, spec, numbers, Memory(gib * GIB, gib * GIB, None))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GgufModel]:
    folder = tmp_path_factory.mktemp("hollow")
    return {
        name: open_gguf(write_hollow_model(folder / f"{name}.gguf", spec, common_types(spec)))
        for name, spec in (("v2", V2_LITE), ("r1", R1_CUT))
    }


@pytest.fixture(scope="module")
def works(models: dict[str, GgufModel]) -> dict[str, Work]:
    specs = {"v2": V2_LITE, "r1": R1_CUT}
    return {name: work_of(gguf, specs[name], planned(gguf, specs[name])) for name, gguf in models.items()}


def runs(file: str, minute: str, begins: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (RESULTS / f"{file}.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["time"].startswith(minute) and line["case"].startswith(begins)]
    return [line for line in found if "sampled" not in line["case"]]


def read_speeds(found: dict[str, Any]) -> list[float]:
    """What the run measured of its memory: one figure, or one a round."""
    message = found.get("memory_gb_per_s", found.get("dram_gb_per_s")) or []
    return message if isinstance(message, list) else [message]


@pytest.mark.parametrize(("file", "minute", "begins"), RECORDED)
def test_predictions_are_within_25_percent_of_measurements(
    works: dict[str, Work], file: str, minute: str, begins: str
) -> None:
    found = runs(file, minute, begins)
    readings = [reading for record in found for reading in read_speeds(record)]
    memory = statistics.median(readings) * 1e9 if readings else 143e9  # a run has one machine, which is not still
    compared = 0
    for record in found:
        all_on_gpu = record.get("all_on_gpu", False)
        on_gpu = "gpu" in record or record.get("device", "cpu") != "cpu"
        work = replace(
            works[begins[:2]], on_gpu=on_gpu, streams=on_gpu and not all_on_gpu, gpu_expert_share=float(all_on_gpu)
        )
        precision = record.get("activation_bytes", 2)
        rates = Rates(memory, record["threads"], record["isa"], precision, H200_BYTES_PER_S, PCIE_BYTES_PER_S)
        measured = record.get("tokens_per_s") or statistics.median(record["ours_tokens_per_s"])
        if batch := re.search(r"decode B=(\d+)", record["case"]):
            expected = decode(work, rates, int(batch[1]))
        else:
            tokens = re.search(r"(?:prefill|passes of) (\d+)", record["case"])
            assert tokens is not None, record["case"]
            expected = prefill(work, rates, int(tokens[1]))
        assert 0.75 < expected.tokens_per_s / measured < 1.25, (record["case"], expected, measured)
        compared += 1
    assert compared > 0


@pytest.mark.parametrize(
    ("gpus", "num_gpus", "tokens", "steps"),
    [
        *(("one GPU, 24 GiB", 1, 4096, 1), ("one GPU, 24 GiB", 1, 32768, 4)),
        *(("two GPUs, 24 GiB each", 2, 4096, 1), ("two GPUs, 24 GiB each", 2, 32768, 2)),
    ],
)
def test_attention_counts_in_the_seconds_of_a_long_prompt(
    tmp_path: Path, gpus: str, num_gpus: int, tokens: int, steps: int
) -> None:
    """The prompts are those of a whole R1 with expanded keys, measured on H200s before they divided heads."""
    kinds = {name: GgmlType.Q2_K if "_exps" in name else kind for name, kind in common_types(R1_SPEC).items()}
    gguf = open_gguf(write_hollow_model(tmp_path / "r1.gguf", R1_SPEC, kinds))
    [(window, operations)] = attention_work(R1_SPEC).items()
    assert (window, operations) == (None, 61 * 2 * 128 * (192 + 128))
    # All steps together have as many pairs as `steps` steps whose tokens see `steps` times as many positions.
    attention: dict[int | None, float] = {None: steps * operations}
    work = replace(work_of(gguf, R1_SPEC, planned(gguf, R1_SPEC)), on_gpu=True, streams=True, attention=attention)
    rates = Rates(200e9, 32, "amx", 2, H200_BYTES_PER_S, PCIE_BYTES_PER_S, num_gpus=num_gpus)
    seconds = tokens / prefill(work, rates, tokens // steps).tokens_per_s
    case = f"whole-r1.gguf, {gpus}: prefill {tokens}"
    [measured] = [record["seconds"] for record in runs("engine_whole_model", "2026-11-30T04:2", case)]
    assert 0.75 < measured / seconds < 1.25


@pytest.mark.parametrize(("tokens", "steps"), [(4096, 1), (32768, 2)])
def test_two_gpus_with_all_experts_compute_parts_of_a_prompt_at_the_same_time(
    tmp_path: Path, tokens: int, steps: int
) -> None:
    """Qwen3-235B's shape in Q4_K on two H200, without flashinfer: attention is taken to be half as fast."""
    gguf = open_gguf(write_hollow_model(tmp_path / "model.gguf", QWEN3_235B_SPEC, q4_k_m_types(QWEN3_235B_SPEC)))
    work = replace(
        work_of(gguf, QWEN3_235B_SPEC, planned(gguf, QWEN3_235B_SPEC)),
        on_gpu=True,
        gpu_expert_share=1.0,
        attention={window: 2 * steps * each for window, each in attention_work(QWEN3_235B_SPEC).items()},
    )
    rates = Rates(130e9, 32, "amx", 2, H200_BYTES_PER_S, PCIE_BYTES_PER_S, num_gpus=2)
    expected = prefill(work, rates, tokens // steps).tokens_per_s
    case = f"qwen3-235b.gguf, two GPUs: prefill {tokens}"
    [measured] = [record["tokens_per_s"] for record in runs("engine_whole_model", "2026-11-30T15:3", case)]
    assert 0.75 < expected / measured < 1.25


@pytest.mark.parametrize(("num_parts", "num_gpus"), [(2, 2), (4, 2), (4, 3)])
def test_gpus_wait_for_the_first_and_the_last_part_of_a_prompt(
    works: dict[str, Work], num_parts: int, num_gpus: int
) -> None:
    work = replace(works["v2"], on_gpu=True, gpu_expert_share=1.0, attention={}, part_tokens=4096)

    def seconds(num_gpus: int, num_tokens: int, work: Work = work) -> float:
        rates = Rates(1e12, 64, "avx512", 2, 4.8e12, 1e15, num_gpus=num_gpus)
        return num_tokens / prefill(work, rates, num_tokens).tokens_per_s

    alone, tokens = num_parts * seconds(1, 4096), num_parts * 4096
    assert seconds(num_gpus, tokens) == pytest.approx(alone * (num_parts + num_gpus - 1) / (num_parts * num_gpus))
    assert seconds(num_gpus, 8191) == seconds(1, 8191)
    in_memory = replace(work, gpu_expert_share=0.9)
    assert seconds(num_gpus, tokens, in_memory) == seconds(num_gpus, tokens, replace(in_memory, part_tokens=0))


def test_windows_limit_the_attention_of_a_prompt(works: dict[str, Work]) -> None:
    rates = Rates(1e12, 64, "avx512", 2, 4.8e12, 1e15)

    def seconds(attention: dict[int | None, float], tokens: int) -> float:
        work = replace(works["v2"], on_gpu=True, gpu_expert_share=1.0, attention=attention)
        return (
            tokens / prefill(work, rates, tokens).tokens_per_s
            - tokens / prefill(replace(work, attention={}), rates, tokens).tokens_per_s
        )

    assert seconds({None: 1e6}, 8192) == pytest.approx(4 * seconds({None: 1e6}, 4096))
    assert seconds({8192: 1e6}, 4096) == pytest.approx(seconds({None: 1e6}, 4096))
    assert seconds({128: 1e6}, 8192) == pytest.approx(2 * seconds({128: 1e6}, 4096), rel=0.02)


@pytest.mark.parametrize(
    ("spec", "begins"),
    [(R1_SPEC, "whole-r1.gguf, two GPUs: decode"), (QWEN3_235B_SPEC, "qwen3-235b.gguf, two GPUs: decode")],
    ids=["R1", "235B"],
)
def test_replies_of_two_gpus_with_all_experts_take_as_long_as_predicted(
    tmp_path: Path, spec: ModelSpec, begins: str
) -> None:
    """R1 with experts in Q2_K, Qwen3-235B in Q4_K, on two H200. Two of the constants follow these records."""
    is_r1 = spec is R1_SPEC
    kinds = common_types(spec) if is_r1 else q4_k_m_types(spec)
    kinds = {name: GgmlType.Q2_K if is_r1 and "_exps" in name else kind for name, kind in kinds.items()}
    gguf = open_gguf(write_hollow_model(tmp_path / "model.gguf", spec, kinds))
    machine = MachineConfig(device="cuda:0,cuda:1", vram_limit=(139 * GIB, 139 * GIB), cpu_threads=32)
    config = Config(model=ModelConfig(gguf_path=gguf.path), scheduling=SchedulingConfig(), machine=machine)
    work = work_of(gguf, spec, plan_for(config, gguf, spec, Described(host_memory=250 * GIB)))
    file = "engine_whole_model" if is_r1 else "peers_llama_cpp"
    found = [record for record in runs(file, "2026-11-30T1", begins) if record["cores"] == 32]
    for record in found:
        expected = decode(work, Rates(130e9, 32, "amx", 2, H200_BYTES_PER_S, 55e9, num_gpus=2), record["batch"])
        measured = record["tokens_per_s"] if is_r1 else statistics.median(record["ours_tokens_per_s"])
        assert 0.75 < expected.tokens_per_s / measured < 1.25, (record["case"], expected)
    assert {record["batch"] for record in found} >= {1, 16}


@pytest.mark.parametrize("threads", [32, 64])
def test_the_speed_of_a_whole_r1_was_predicted(tmp_path: Path, threads: int) -> None:
    """61 layers, experts in Q4_K: no constant follows these records."""
    kinds = {name: GgmlType.Q4_K if "_exps" in name else kind for name, kind in common_types(R1_SPEC).items()}
    gguf = open_gguf(write_hollow_model(tmp_path / "r1.gguf", R1_SPEC, kinds))
    work = replace(work_of(gguf, R1_SPEC, planned(gguf, R1_SPEC)), on_gpu=True, streams=True)
    begins = f"whole-r1.gguf, Q4_K, {threads} threads: decode B="
    lines = [json.loads(line) for line in (RESULTS / "engine_whole_model.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["case"].startswith(begins)]
    for record in found:
        rates = Rates(record["memory_gb_per_s"] * 1e9, threads, "amx", 2, 3.35e12, PCIE_BYTES_PER_S)
        expected = decode(work, rates, record["batch"])
        assert 0.85 < expected.tokens_per_s / record["tokens_per_s"] < 1.15, (record["case"], expected)
    assert len(found) >= 6


@pytest.mark.parametrize(("quant", "expected"), [("Q4_0", 1), ("Q8_0", 2)])
def test_activations_are_rounded_as_most_weights_allow(tmp_path: Path, quant: str, expected: int) -> None:
    spec = changed(V2_LITE, num_layers=2)
    kinds = {name: GgmlType[quant] if "exps" in name else kind for name, kind in common_types(spec).items()}
    gguf = open_gguf(write_hollow_model(tmp_path / "model.gguf", spec, kinds))
    assert usual_activation_bytes(gguf, spec) == expected


def test_the_bytes_of_a_step_are_those_that_benchmarks_counted(works: dict[str, Work]) -> None:
    for name, minute, begins in (("v2", "2026-11-24T05:26Z", "v2.gguf"), ("r1", "2026-11-24T05:25Z", "r1.gguf")):
        for record in runs("engine_decode", minute, begins):
            if "batch" in record:
                work = works[name]
                gigabytes = (work.dense_bytes + work.used_share(record["batch"]) * work.expert_bytes) / 1e9
                assert gigabytes == pytest.approx(record["gb_read_per_step"], rel=0.05)


def test_the_limiting_factor_is_reported(works: dict[str, Work]) -> None:
    slow_memory, slow_cpu = Rates(1e9, 64, "avx512"), Rates(1e12, 1, "reference")
    assert decode(works["v2"], slow_memory, 1).limit == "host memory, 1.6 GiB per step"
    assert decode(works["v2"], slow_cpu, 1).limit == "the CPU's arithmetic"
    on_gpu = replace(works["r1"], on_gpu=True, streams=True)
    slow_bus = Rates(1e12, 64, "avx512", 2, 4.8e12, 1e9)
    assert prefill(on_gpu, slow_bus, 4096).limit == "PCIe"
    assert prefill(on_gpu, replace(slow_bus, gpu_memory=1e9, pcie=1e12), 4096).limit == "the GPU's arithmetic"
    all_there = replace(on_gpu, gpu_expert_share=1.0, streams=False)
    assert decode(all_there, replace(slow_bus, gpu_memory=1e11), 16).limit == "the GPU's memory"
    assert prefill(replace(on_gpu, streams=False), Rates(1e12, 1, "avx2", 2, 4.8e12, 1e9), 4096).limit == (
        "the CPU's arithmetic"
    )


def test_a_small_model_waits_for_the_program() -> None:
    """5.8 MiB a token, as the built-in model has: 760 tokens a second over HTTP by results/built_in.jsonl."""
    small = Work(6 << 20, 6_000_000, 0, 0, num_layers=6, num_experts=0, num_experts_used=0)
    expected = decode(small, Rates(57e9, 2, "avx512"), 1)
    assert expected.limit == "the program between steps"
    assert 600 < expected.tokens_per_s < 1200


def test_a_machine_is_described(
    models: dict[str, GgufModel], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "chosen_isa", lambda: "avx512")  # the records are of AVX-512
    words = ["--host_memory", "64GiB", "--memory_bandwidth", "46GB/s", "--threads", "2"]
    assert cli.main(["plan", str(models["v2"].path), "--json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["available_bytes"] == 64 * GIB
    assert found["speed"]["memory_bytes_per_s"] == 46e9
    assert found["speed"]["threads"] == 2
    assert list(found["speed"]["decode"]) == ["1", "4", "16"]
    assert found["speed"]["decode"]["16"]["tokens_per_s"] == pytest.approx(57, rel=0.25), "of the records"
    assert found["missing"] == []

    with_gpu = [*words, "--vram_limit", "24GiB", "--pcie", "4x16", "--gpu_bandwidth", "1008GB/s"]
    assert cli.main(["plan", str(models["v2"].path), *with_gpu]) == 0
    reported = capsys.readouterr().out
    assert "46 GB/s of host memory, as described, 2 threads of" in reported
    assert "1008 GB/s of the GPU's memory, as described, 25 GB/s across PCIe, as described" in reported


def test_the_time_in_which_experts_are_streamed_follows_from_the_described_bus(
    models: dict[str, GgufModel], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--host_memory", "64GiB", "--memory_bandwidth", "46GB/s", "--threads", "2", "--vram_limit", "24GiB"]

    def streaming(*more: str) -> dict[str, Any]:
        assert cli.main(["plan", str(models["v2"].path), "--json", "--gpu_experts", "0", *words, *more]) == 0
        return json.loads(capsys.readouterr().out)["device"]["streaming"]

    assumed, slow, fast = streaming(), streaming("--pcie", "4x16"), streaming("--pcie", "5x16")
    assert assumed["pass_s"] == pytest.approx(slow["pass_s"], rel=0.02), "assumed is PCIe 4.0 with 16 lanes"
    assert fast["pass_s"] == pytest.approx(slow["pass_s"] / 2, rel=0.01)
    assert fast["from_tokens"] == pytest.approx(slow["from_tokens"] / 2, abs=1)
    assert cli.main(["plan", str(models["v2"].path), "--gpu_experts", "0", *words, "--pcie", "5x16"]) == 0
    assert "an estimate by 50 GB/s and 2 threads" in capsys.readouterr().out


def test_a_described_machine_does_not_use_the_local_gpu(
    models: dict[str, GgufModel], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "free_vram", lambda _: 4 * GIB)
    here = replace(read_machine(), gpus=("NVIDIA L4",))
    monkeypatch.setattr(command, "read_machine", lambda: here)
    limit, host = ["--device", "cuda", "--vram_limit", "24GiB"], ["--host_memory", "64GiB"]

    def planned_on(*words: str) -> dict[str, Any]:
        cli.main(["plan", str(models["v2"].path), "--json", "--memory_bandwidth", "46GB/s", *words])
        return json.loads(capsys.readouterr().out)

    there = planned_on(*limit, *host)
    assert there["device"]["available_bytes"] == 24 * GIB
    assert there["speed"]["gpu_memory_bytes_per_s"] == ASSUMED_GPU_BYTES_PER_S
    of_this = planned_on("--device", "cuda", *host)
    assert of_this["device"]["available_bytes"] == 4 * GIB, "what is not named is this machine's"
    assert of_this["speed"]["gpu_memory_bytes_per_s"] == 300e9


def test_a_described_machine_has_as_many_gpus_as_limits_whatever_is_visible_here(
    models: dict[str, GgufModel], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "num_visible_gpus", lambda: 2)
    monkeypatch.setattr(command, "free_vram", lambda _: 4 * GIB)

    def gpus(*words: str) -> dict[str, int]:
        cli.main(["plan", str(models["v2"].path), "--json", "--memory_bandwidth", "46GB/s", "--device", "cuda", *words])
        return {
            each["name"]: each["available_bytes"] for each in json.loads(capsys.readouterr().out)["device"]["devices"]
        }

    three = {"cuda:0": 24 * GIB, "cuda:1": 16 * GIB, "cuda:2": 8 * GIB}
    assert gpus("--vram_limit", "24GiB,16GiB,8GiB") == three
    assert gpus("--vram_limit", "24GiB") == {"cuda:0": 24 * GIB}
    assert gpus("--vram_limit", "24GiB", "--device_split", "1,1,1") == dict.fromkeys(three, 24 * GIB)
    assert gpus() == {"cuda:0": 4 * GIB, "cuda:1": 4 * GIB}, "only the host's memory is described"


HOT = ["--hot_experts", "16:0.5", "--gpu_experts", "500"]


def test_the_gain_of_experts_that_follow_use_depends_on_the_skew(
    models: dict[str, GgufModel], capsys: pytest.CaptureFixture[str]
) -> None:
    machine = ["--host_memory", "64GiB", "--memory_bandwidth", "46GB/s", "--vram_limit", "24GiB"]

    def gains(*words: str) -> dict[str, float]:
        assert cli.main(["plan", str(models["v2"].path), "--json", *machine, *words]) == 0
        speed = json.loads(capsys.readouterr().out)["speed"]
        return {batch: found["gain"] for batch, found in speed["following"].items()}

    some = gains(*HOT)
    assert list(some) == ["1", "4", "16"]
    assert 1.1 < some["16"] < some["4"] < some["1"] < 2, "many requests use nearly all experts"
    assert gains("--hot_experts", "16:0.9", "--gpu_experts", "500")["1"] > some["1"]
    assert gains("--hot_experts", "16:0.25", "--gpu_experts", "500") == dict.fromkeys(some, 1.0), "16 of 64 experts"
    assert gains("--hot_experts", "16:0.5", "--gpu_experts", "0") == dict.fromkeys(some, 1.0)
    assert gains() == {}
    assert cli.main(["plan", str(models["v2"].path), *machine, *HOT]) == 0
    reported = capsys.readouterr().out
    assert "If the 16 most used experts of each layer get 50% of the uses, with gpu_experts_update=on" in reported
    assert re.search(rf"16 requests +\d+  {some['16']:.2f} times as fast as off", reported)


@pytest.mark.parametrize(
    ("skew", "problem"),
    [
        ("64:1", "a layer has 64 experts; name fewer"),
        ("16:0.2", "16 of 64 experts get between 0.25 and 1 of the uses"),
        ("3:0.6", "3 of 64 experts get between 0.0469 and 0.5 of the uses, because a token selects 6 different ones"),
        ("16", "expected experts of a layer and their share of the uses, such as 32:0.5"),
        ("16:50", "expected experts of a layer and their share"),
    ],
)
def test_a_skew_that_a_layer_cannot_have_is_refused(
    models: dict[str, GgufModel], capsys: pytest.CaptureFixture[str], skew: str, problem: str
) -> None:
    words = ["--host_memory", "64GiB", "--memory_bandwidth", "46GB/s", "--vram_limit", "24GiB", "--hot_experts", skew]
    assert cli.main(["plan", str(models["v2"].path), *words]) == ConfigError.exit_code
    assert f"hot_experts={skew}: {problem}" in capsys.readouterr().err


def test_experts_do_not_follow_use_without_a_gpu(
    models: dict[str, GgufModel], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--host_memory", "64GiB", "--memory_bandwidth", "46GB/s", "--device", "cpu", "--hot_experts", "16:0.5"]
    assert cli.main(["plan", str(models["v2"].path), *words]) == ConfigError.exit_code
    assert "hot_experts=16:0.5: estimates experts that move in a GPU's memory" in capsys.readouterr().err


def test_use_that_follows_a_power_law_agrees_with_published_shares() -> None:
    """As in benchmarks/hybrid/expert_use.py: a cache of twice the size has three quarters instead of 58 %."""
    use = ExpertUse(ExpertSkew(16, 0.58), 128, 8)
    assert use.rates.sum() == pytest.approx(8)
    assert use.rates[:16].sum() / 8 == pytest.approx(0.58)
    assert use.rates[:32].sum() / 8 == pytest.approx(0.75, rel=0.06)
    assert use.rates[0] == 1.0, "no token selects an expert twice"
    read = use.read(1, 0.25, follows=True)
    assert 1 - read.host_uses == pytest.approx(use.rates[:32].sum() / 8)
    assert read.on_host + read.on_gpu == pytest.approx(8 / 128)


def test_this_machine_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--device", "cpu"]) == 0
    assert re.search(r"Based on \d+ GB/s of host memory, measured now, \d+ threads", capsys.readouterr().out)
    assert bandwidth.memory_bytes_per_s(1, Memory(GIB, 1 << 20, None)) is None, "too little is free"


@pytest.mark.parametrize("name", ["NVIDIA RTX A1000", "NVIDIA T400", "NVIDIA GB10"])
def test_a_gpu_is_not_confused_with_one_with_a_similar_name(name: str) -> None:
    assert bandwidth.gpu_bytes_per_s(name) is None
    assert bandwidth.gpu_bytes_per_s("NVIDIA A100-SXM4-80GB") == 2039e9


def test_memory_that_a_limit_keeps_back_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise MemoryError

    monkeypatch.setattr(bandwidth.kernels, "measure_read_speed", refuse)
    assert bandwidth.memory_bytes_per_s(1, Memory(GIB, GIB, None)) is None
    assert list(bandwidth.by_node(read_machine())) == []


def test_the_doctor_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run(measure=True) == 0
    reported = capsys.readouterr().out
    nodes = [node for node in read_machine().topology.nodes if node.cores and node.memory_allowed]
    assert len(re.findall(r"bandwidth +memory.*: \d+\.\d GB/s", reported)) == len(nodes)
    doctor.run()
    assert "bandwidth" not in capsys.readouterr().out


def test_missing_memory_is_reported_with_what_would_fit(models: dict[str, GgufModel]) -> None:
    gguf = models["v2"]
    assert shortfall_lines(gguf, V2_LITE, planned(gguf, V2_LITE)) == []
    plan = planned(gguf, V2_LITE, gib=8)
    needed, advice = shortfall_lines(gguf, V2_LITE, plan)
    assert needed == f"{(plan.needed_bytes - 8 * GIB) / GIB:.1f} GiB more host memory is needed."
    assert advice == "A file of about 4.0 bits per weight would fit, such as Q3_K_M."
    others = [("Q2_K", 6 * GIB), ("IQ1_S", 4 * GIB), ("Q4_K_M", 11 * GIB)]
    assert shortfall_lines(gguf, V2_LITE, plan, others)[1] == (
        "Of the repository's models, Q2_K (6.0 GiB) would probably fit."
    )
    assert "None of the repository's models" in shortfall_lines(gguf, V2_LITE, plan, others[2:])[1]
    assert "No common quantisation" in shortfall_lines(gguf, V2_LITE, planned(gguf, V2_LITE, gib=1))[1]


def test_the_command_says_it_before_it_refuses(
    models: dict[str, GgufModel], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--host_memory", "8GiB", "--memory_bandwidth", "46GB/s", "--device", "cpu"]
    assert cli.main(["plan", str(models["v2"].path), *words]) == OutOfMemoryError.exit_code
    assert re.search(r"It does not fit\. .* would fit, such as", capsys.readouterr().out)


def test_sizes_and_rates_are_read() -> None:
    assert read_rate("memory_bandwidth", "1.5TB/s") == 1.5e12
    assert read_pcie("pcie", "4x16") == pytest.approx(25.2e9, rel=0.01)
    assert read_pcie("pcie", "12GB/s") == 12e9
    assert read_size("host_memory", "384GiB") == 384 * GIB
    for read, text in (
        (read_rate, "300"),
        (read_rate, "0GB/s"),
        (read_rate, "-1GB/s"),
        (read_rate, "300GiB/s"),
        (read_pcie, "9x16"),
        (read_pcie, "4x3"),
        (read_size, "auto"),
        (read_size, "much"),
        (read_size, "0"),
    ):
        with pytest.raises(ConfigError, match="expected"):
            read("option", text)


def test_recurrent_state_is_read_and_written_for_each_request(tmp_path: Path) -> None:
    gguf = open_gguf(write_hollow_model(tmp_path / "next.gguf", QWEN3_NEXT_80B_SPEC, common_types(QWEN3_NEXT_80B_SPEC)))
    numbers = Numbers(cache_lens=1000, block_tokens=32, max_batch_size=4, chunk_size=64, prefill_chunk_size=64)
    memory = Memory(128 * GIB, 128 * GIB, None)
    work = work_of(gguf, QWEN3_NEXT_80B_SPEC, make_plan(gguf, QWEN3_NEXT_80B_SPEC, numbers, memory))
    assert work.state_bytes == 79_036_416
    rates = Rates(memory=100e9, num_threads=64, isa="avx512")
    for batch in (1, 16):
        with_states, without = (
            batch / decode(each, rates, batch).tokens_per_s for each in (work, replace(work, state_bytes=0))
        )
        assert with_states - without > batch * 2 * work.state_bytes / rates.memory
    assert prefill(work, rates, 512) == prefill(replace(work, state_bytes=0), rates, 512)
