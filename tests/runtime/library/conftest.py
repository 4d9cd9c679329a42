"""The library with the built-in model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ballast import LLM


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_num_seqs=16, cache_lens=4096, max_new_tokens=128) as loaded:
        yield loaded
