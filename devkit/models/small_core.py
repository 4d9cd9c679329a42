"""A small engine of a model's file, for tests of what is in the file."""

from __future__ import annotations

from pathlib import Path

from ballast.engine.core import EngineCore
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.host.isa import chosen_isa
from ballast.model.metadata import read_spec
from ballast.model.tensors import check_tensors
from ballast.weights.gguf import open_gguf


def core_of(path: Path, isa: str | None = None) -> EngineCore:
    """The file read, checked and loaded, as at a server's start. Raises ModelError."""
    model = open_gguf(path)
    spec = read_spec(model)
    check_tensors(model, spec)
    settings = EngineSettings(
        cache_lens=1024,
        max_batch_size=4,
        max_new_tokens=16,
        chunk_size=64,
        prefill_chunk_size=64,
        max_queue=8,
        cpu_threads=2,
        cpu_isa=isa or chosen_isa(),
        activation_bytes=2,
    )
    return EngineCore(load_runner(model, spec, spec.vocab_size, settings), scheduler_config(settings))
