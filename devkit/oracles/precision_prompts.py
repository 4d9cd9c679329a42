"""Prompts and settings with which the distributions of a model are compared in different precisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tokenizers

from ballast.engine.startup.build import EngineSettings
from ballast.tiny import BUILT_IN

PROMPT_TOKENS = 250
SETTINGS = EngineSettings(
    cache_lens=512,
    max_batch_size=1,
    max_new_tokens=2,
    chunk_size=256,
    prefill_chunk_size=256,
    max_queue=4,
    block_tokens=16,
)


def text_prompts(text: Path, rng: np.random.Generator, num_prompts: int) -> list[tuple[int, ...]]:
    """Random parts of a text of PROMPT_TOKENS each, in tokens of the built-in model, which was not trained on it."""
    tokenizer = tokenizers.Tokenizer.from_file(str(BUILT_IN.config_dir / "tokenizer.json"))
    ids = tokenizer.encode(text.read_text(encoding="utf-8")).ids
    starts = rng.integers(0, len(ids) - PROMPT_TOKENS, num_prompts)
    return [tuple(ids[start : start + PROMPT_TOKENS]) for start in starts]
