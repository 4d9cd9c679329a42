"""The contexts on the pages about sizing are those of the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from ballast.config.options import Config, MachineConfig, ModelConfig, SchedulingConfig
from ballast.model.metadata import read_spec
from ballast.plan.command import plan_for
from ballast.plan.described import Described
from ballast.weights.gguf import open_gguf
from devkit.long import if_long, times
from devkit.models.gguf_files import write_hollow_model
from devkit.models.quant_recipes import mxfp4_types, q4_k_m_types
from devkit.models.specs.deepseek import R1_SPEC, V32_671B_SPEC
from devkit.models.specs.deepseek4 import V4_FLASH_SPEC
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
from devkit.models.specs.mimo import MIMO_FLASH_SPEC
from devkit.models.specs.minimax import MINIMAX_M2_SPEC
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
from tools.synthetic_model import V2_LITE

GIB = 1 << 30
PAGES = Path(__file__).parents[3] / "docs/one-machine"
COLUMNS = (
    (24 * GIB, 4096, None),
    (24 * GIB, 256, None),
    (24 * GIB, 256, 0),
    (32 * GIB, 4096, None),
    (16 * GIB, 4096, None),
)
"""The GPU's memory, the tokens of a step and `stream_from_tokens` of the table's columns."""
SPECS = {
    "DeepSeek-V2-Lite": V2_LITE,
    "GLM-4.7-Flash": GLM47_FLASH_SPEC,
    "Qwen3-30B-A3B": QWEN3_30B_SPEC,
    "Qwen3.6-35B-A3B": QWEN35_35B_SPEC,
    "Kimi-Linear-48B-A3B": KIMI_LINEAR_48B_SPEC,
    "Qwen3-Coder-Next": QWEN3_NEXT_80B_SPEC,
    "Laguna XS.2": LAGUNA_XS_SPEC,
    "Laguna S-2.1": LAGUNA_S_SPEC,
    "Mistral Small 4": MISTRAL_SMALL4_SPEC,
    "GLM-4.5-Air": GLM45_AIR_SPEC,
    "Qwen3.5-122B-A10B": QWEN35_122B_SPEC,
    "dots.llm1": DOTS1_142B_SPEC,
    "Qwen3.8-Flash-Next": FLASH_NEXT_125B_SPEC,
    "Step-3.5-Flash": STEP35_FLASH_SPEC,
    "MiniMax-M2": MINIMAX_M2_SPEC,
    "Laguna M.1": LAGUNA_M1_SPEC,
    "Qwen3-235B-A22B": QWEN3_235B_SPEC,
    "Hunyuan 3": HUNYUAN3_SPEC,
    "MiMo-V2-Flash and V2.5": MIMO_FLASH_SPEC,
    "Qwen3.5-397B-A17B": QWEN35_397B_SPEC,
    "GLM-4.6": GLM46_SPEC,
    "Qwen3-Coder-480B-A35B": QWEN3_CODER_SPEC,
    "DeepSeek-V3, V3.1, R1": R1_SPEC,
    "Mistral Large 3": MISTRAL_LARGE3_SPEC,
    "DeepSeek V3.2": V32_671B_SPEC,
    "GLM-5": GLM5_SPEC,
    "GLM-5.2 and 5.3": GLM52_SPEC,
    "GLM-5.3-Flash": GLM53_FLASH_SPEC,
    "Kimi K2 to K2.7-Code": K2_SPEC,
    "gpt-oss-20b, MXFP4": GPT_OSS_20B_SPEC,
    "gpt-oss-120b, MXFP4": GPT_OSS_120B_SPEC,
    "DeepSeek-V4-Flash, MXFP4": V4_FLASH_SPEC,
}
"""The models of the table's rows."""
ALWAYS = (
    *("gpt-oss-120b, MXFP4", "Laguna S-2.1", "MiMo-V2-Flash and V2.5", "MiniMax-M2", "Hunyuan 3", "Qwen3.6-35B-A3B"),
    *("DeepSeek-V3, V3.1, R1", "DeepSeek V3.2", "DeepSeek-V4-Flash, MXFP4", "GLM-5.3-Flash", "Qwen3.8-Flash-Next"),
)
"""Models that differ in what they keep or compute."""
LEAST = 1024
"""The smallest cache that a cell shows."""
TOLERANCE = 0.02
"""A change of work buffers by some MiB is no reason to change the pages."""


def test_every_row_has_a_model() -> None:
    assert set(rows("memory-and-context.md", len(COLUMNS) + 1)) == {"model (Q4_K_M)", "---", *SPECS}


@pytest.mark.parametrize("name", [*ALWAYS, *if_long(*(name for name in SPECS if name not in ALWAYS))])
def test_the_contexts_are_those_of_the_plan(tmp_path: Path, name: str) -> None:
    spec = SPECS[name]
    types = mxfp4_types(spec) if name.endswith("MXFP4") else q4_k_m_types(spec)
    file = write_hollow_model(tmp_path / "m.gguf", spec, types)
    cells = rows("memory-and-context.md", len(COLUMNS) + 1)[name]
    for cell, column in list(zip(cells, COLUMNS, strict=True))[: times(1, len(COLUMNS))]:
        most = planned(file, *column)
        assert (cell == "does not fit") == (most < LEAST), column
        assert tokens_of(cell) == pytest.approx(most, rel=TOLERANCE, abs=LEAST), column
        if cell == "does not fit":  # but fits with shorter steps, as the page says
            assert planned(file, column[0], 1024, None) >= LEAST


def test_the_table_of_models_has_the_same_contexts() -> None:
    exact, shown = rows("memory-and-context.md", len(COLUMNS) + 1), rows("choose-a-model.md", 6)
    both = {name: name.split(",")[0] for name in SPECS if name.split(",")[0] in shown}
    assert len(both) > 20
    for name, short in both.items():
        most = tokens_of(exact[name][0])
        assert tokens_of(shown[short][3]) in (most // 1000 * 1000, min(most, SPECS[name].context_length)), name


def rows(page: str, num_cells: int) -> dict[str, list[str]]:
    """The rows of the tables with this number of columns: the other cells by the first."""
    split = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (PAGES / page).read_text().splitlines()]
    return {row[0]: row[1:] for row in split if len(row) == num_cells}


def tokens_of(cell: str) -> int:
    return 0 if cell == "does not fit" else int(cell.replace(",", ""))


def planned(file: Path, vram_limit: int, step: int, stream_from_tokens: int | None) -> int:
    """The largest cache on the GPU; 0 if nothing fits."""
    gguf = open_gguf(file)
    scheduling = SchedulingConfig(max_batch_size=4, prefill_chunk_size=step)
    machine = MachineConfig(
        device="cuda:0", vram_limit=(vram_limit,), cpu_threads=32, stream_from_tokens=stream_from_tokens
    )
    config = Config(ModelConfig(gguf_path=file), scheduling=scheduling, machine=machine)
    plan = plan_for(config, gguf, read_spec(gguf), Described(host_memory=1000 * GIB))
    assert plan.gpus is not None
    return plan.gpus.max_cache_lens or 0
