"""The contexts that pages name for a GPU are those of `ballast plan`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ballast import cli
from devkit.long import if_long
from devkit.models.gguf_files import write_hollow_model
from devkit.models.quant_recipes import mxfp4_types, q4_k_m_types
from devkit.models.specs.deepseek import R1_SPEC, V32_671B_SPEC
from devkit.models.specs.deepseek4 import V4_FLASH_SPEC
from devkit.models.specs.glm import GLM5_SPEC, GLM45_AIR_SPEC, GLM46_SPEC, GLM47_FLASH_SPEC, GLM53_FLASH_SPEC
from devkit.models.specs.gpt_oss import GPT_OSS_20B_SPEC, GPT_OSS_120B_SPEC
from devkit.models.specs.kimi import K2_SPEC, KIMI_LINEAR_48B_SPEC
from devkit.models.specs.laguna import LAGUNA_S_SPEC, LAGUNA_XS_SPEC
from devkit.models.specs.mimo import MIMO_FLASH_SPEC
from devkit.models.specs.mistral import MISTRAL_LARGE3_SPEC, MISTRAL_SMALL4_SPEC
from devkit.models.specs.qwen3 import (
    FLASH_NEXT_125B_SPEC,
    QWEN3_30B_SPEC,
    QWEN3_235B_SPEC,
    QWEN3_CODER_SPEC,
    QWEN3_NEXT_80B_SPEC,
    QWEN35_35B_SPEC,
    QWEN35_122B_SPEC,
    QWEN35_397B_SPEC,
)
from devkit.models.specs.step import STEP35_FLASH_SPEC

PAGES = Path(__file__).parents[2] / "docs/one-machine"
SPECS = {
    "gpt-oss-20b, MXFP4": GPT_OSS_20B_SPEC,
    "GLM-4.7-Flash": GLM47_FLASH_SPEC,
    "Qwen3-30B-A3B": QWEN3_30B_SPEC,
    "Qwen3.6-35B-A3B": QWEN35_35B_SPEC,
    "Kimi-Linear-48B-A3B": KIMI_LINEAR_48B_SPEC,
    "Qwen3-Coder-Next": QWEN3_NEXT_80B_SPEC,
    "Laguna XS.2": LAGUNA_XS_SPEC,
    "gpt-oss-120b, MXFP4": GPT_OSS_120B_SPEC,
    "Laguna S-2.1": LAGUNA_S_SPEC,
    "Mistral Small 4": MISTRAL_SMALL4_SPEC,
    "GLM-4.5-Air": GLM45_AIR_SPEC,
    "Qwen3.5-122B-A10B": QWEN35_122B_SPEC,
    "Qwen3.8-Flash-Next": FLASH_NEXT_125B_SPEC,
    "Step-3.5-Flash": STEP35_FLASH_SPEC,
    "Qwen3-235B-A22B": QWEN3_235B_SPEC,
    "DeepSeek-V4-Flash, MXFP4": V4_FLASH_SPEC,
    "MiMo-V2-Flash": MIMO_FLASH_SPEC,
    "Qwen3.5-397B-A17B": QWEN35_397B_SPEC,
    "GLM-4.6": GLM46_SPEC,
    "Qwen3-Coder-480B-A35B": QWEN3_CODER_SPEC,
    "DeepSeek-V3, V3.1, R1": R1_SPEC,
    "Mistral Large 3": MISTRAL_LARGE3_SPEC,
    "DeepSeek V3.2": V32_671B_SPEC,
    "GLM-5": GLM5_SPEC,
    "GLM-5.3-Flash": GLM53_FLASH_SPEC,
    "Kimi K2": K2_SPEC,
}
"""By the name of their row; all but DeepSeek-V2-Lite."""
COLUMNS = [
    ["--vram_limit", "24GiB", "--prefill_chunk_size", "4096"],
    ["--vram_limit", "24GiB", "--prefill_chunk_size", "256"],
    ["--vram_limit", "24GiB", "--prefill_chunk_size", "256", "--stream_from_tokens", "0"],
    ["--vram_limit", "32GiB", "--prefill_chunk_size", "4096"],
    ["--vram_limit", "16GiB", "--prefill_chunk_size", "4096"],
]
HOST = ["--host_memory", "1000GiB", "--memory_bandwidth", "200GB/s", "--threads", "32"]
MACHINE = [*HOST, "--device", "cuda:0", "--gpu_bandwidth", "1008GB/s", "--pcie", "4x16"]


def rows(page: str, num_columns: int) -> Iterator[list[str]]:
    """The cells of the rows of a page's tables that have this number of columns."""
    for line in (PAGES / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == num_columns:
            yield cells


CONTEXTS = {name: contexts for name, *contexts in rows("memory-and-context.md", 6) if name in SPECS}
CASES = [(name, column) for name in SPECS for column in range(len(COLUMNS))]
NEWEST = [(name, 0) for name in ("DeepSeek-V4-Flash, MXFP4", "GLM-5.3-Flash", "Qwen3.8-Flash-Next")]


@pytest.mark.parametrize(("name", "column"), [*NEWEST, *if_long(*(case for case in CASES if case not in NEWEST))])
def test_contexts_on_a_gpu_are_those_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, column: int
) -> None:
    spec = SPECS[name]
    types = mxfp4_types(spec) if name.endswith("MXFP4") else q4_k_m_types(spec)
    file = write_hollow_model(tmp_path / "model.gguf", spec, types)
    cli.main(["plan", "--json", "--gguf_path", str(file), "--max_batch_size", "4", *MACHINE, *COLUMNS[column]])
    most = json.loads(capsys.readouterr().out)["device"]["max_cache_lens"]
    assert CONTEXTS[name][column] == (f"{most:,}" if most else "does not fit")


def test_models_to_choose_from_have_the_same_contexts_in_thousands() -> None:
    """Rounded down, or the model's own context."""
    compared = 0
    for name, _, _, _, context, _ in rows("choose-a-model.md", 6):
        of_model = next((own for own in CONTEXTS if own.split(",")[0] == name), None)
        if of_model is not None:
            most, own = (int(each.replace(",", "")) for each in (CONTEXTS[of_model][0], context))
            assert own in {most // 1000 * 1000, min(most, SPECS[of_model].context_length)}, name
            compared += 1
    assert compared > len(SPECS) - 4
