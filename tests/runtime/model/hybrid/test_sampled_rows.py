"""The end of the stream is computed for the sampled tokens of a step alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ballast.engine.startup.build import EngineSettings
from ballast.model.batch import padding
from ballast.model.hybrid.residual.residual import BlockInput, Stream
from devkit.models.float_hybrid import load_hybrid
from devkit.models.written import MakeTiny

CPU = torch.device("cpu")
SETTINGS = EngineSettings(
    cache_lens=256, max_batch_size=4, max_new_tokens=16, chunk_size=24, prefill_chunk_size=48, max_queue=8
)


# One row per token, rows that are mixed, and rows that are read through gates.
@pytest.mark.parametrize("arch", ["v3", "v4", "glm53flash", "qwen38flashnext"])
def test_the_end_of_the_stream_is_computed_for_sampled_tokens_alone(
    written: MakeTiny, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hybrid = load_hybrid(written(arch=arch, quant="f32").gguf, CPU, SETTINGS, kv_dtype=torch.float32)
    residual, num_ended = hybrid.devices[0].residual, []
    finish = residual.finish

    def counted(stream: Stream, parts: tuple[torch.Tensor, ...], end: BlockInput) -> torch.Tensor:
        num_ended.append([len(stream.rows), *map(len, parts)])
        return finish(stream, parts, end)

    monkeypatch.setattr(residual, "finish", counted)
    batch = padding(40, hybrid.devices[0].kv.block_tokens)
    batch = replace(batch, token_ids=np.arange(40, dtype=np.int32) + 5)
    sampled = np.array([7, 39])
    every, found, none = (
        hybrid.forward(replace(batch, sampled=own), lambda: None).copy()
        for own in (np.arange(40), sampled, np.array([], np.int64))
    )
    np.testing.assert_allclose(found, every[sampled], rtol=0, atol=1e-5)
    assert len(none) == 0
    assert [set(lengths) for lengths in num_ended] == [{40}, {2}, {0}]
