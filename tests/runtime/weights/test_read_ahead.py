"""Tensors are read before they are packed, but no further ahead than allowed."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import pytest

from ballast._core import kernels
from ballast.model.metadata import read_spec
from ballast.model.packed_tensors import Packing
from ballast.model.weights import load_weights
from ballast.weights.gguf import GgufModel, open_gguf
from ballast.weights.read_ahead import ReadAhead
from devkit.models.written import MakeTiny

LIMIT_S = 10


@pytest.fixture
def model(written: MakeTiny) -> GgufModel:
    return open_gguf(written(arch="v2lite", mla="split", quant="q8_0").gguf)


@dataclass
class Reads:
    """Read-ahead requests to the system, by offset."""

    sizes: dict[int, int] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, file: int, offset: int, count: int, advice: int) -> None:
        with self.changed:
            if advice == os.POSIX_FADV_DONTNEED:
                self.dropped.append(offset)
            else:
                assert advice == os.POSIX_FADV_WILLNEED
                self.sizes[offset] = count
            self.changed.notify()

    def wait_for(self, model: GgufModel, *names: str) -> None:
        """Wait until exactly these tensors have been requested."""
        wanted = {model.tensors[name].offset: model.tensors[name].num_bytes for name in names}
        with self.changed:
            assert self.changed.wait_for(lambda: self.sizes == wanted, LIMIT_S), (self.sizes, wanted)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    noted = Reads()
    monkeypatch.setattr(os, "posix_fadvise", noted.note)
    return noted


def test_it_stays_within_its_lead(model: GgufModel, reads: Reads) -> None:
    names = [f"blk.{layer}.ffn_down_exps.weight" for layer in (1, 2, 3)]
    size = model.tensors[names[0]].num_bytes
    with ReadAhead(model, names, lead_bytes=size - 1) as ahead:
        reads.wait_for(model, names[0])
        ahead.begin(names[0])
        reads.wait_for(model, *names[:2])
        ahead.begin(names[1])
        reads.wait_for(model, *names)


def test_the_read_ahead_thread_ends_with_its_context(model: GgufModel, reads: Reads) -> None:
    before = threading.active_count()
    with ReadAhead(model, model.tensors, lead_bytes=0):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_earlier_layers_are_dropped_from_a_full_page_cache(model: GgufModel, reads: Reads) -> None:
    names = [f"blk.{layer}.ffn_{part}_exps.weight" for layer in (1, 2, 3) for part in ("up", "down")]
    offsets = [model.tensors[name].offset for name in names]
    with ReadAhead(model, names, lead_bytes=0, drops_packed=True) as ahead:
        for count, name in enumerate(names, start=1):
            reads.wait_for(model, *names[:count])
            ahead.begin(name)
    assert reads.dropped == offsets[:4]  # the last layer is being packed


def test_already_packed_tensors_are_not_read_ahead(model: GgufModel, reads: Reads) -> None:
    names = [f"blk.{layer}.ffn_down_exps.weight" for layer in (1, 2, 3)]
    ahead = ReadAhead(model, names, lead_bytes=0)
    for name in names:
        ahead.begin(name)
    with ahead:
        reads.wait_for(model, names[2])


def test_the_page_cache_is_kept_if_memory_is_sufficient(model: GgufModel, reads: Reads) -> None:
    names = [f"blk.{layer}.ffn_down_exps.weight" for layer in (1, 2, 3)]
    with ReadAhead(model, names, lead_bytes=0) as ahead:
        for count, name in enumerate(names, start=1):
            reads.wait_for(model, *names[:count])
            ahead.begin(name)
    assert not reads.dropped


@pytest.mark.skipif(len(kernels.usable_isas()) == 1, reason="no kernels that pack weights")
def test_all_that_is_packed_is_read(model: GgufModel, reads: Reads) -> None:
    spec = read_spec(model)
    packed = [name for name in model.tensors if name != "token_embd.weight"]
    packing = Packing(kernels.ThreadPool(1), kernels.usable_isas()[0], 2)
    load_weights(model, spec, spec.vocab_size, packing, lambda share: reads.wait_for(model, *packed))


def test_weights_used_in_place_are_not_read_ahead(model: GgufModel, reads: Reads) -> None:
    spec = read_spec(model)
    load_weights(model, spec, spec.vocab_size, Packing(kernels.ThreadPool(1), "reference", 2), lambda _: None)
    assert not reads.sizes
