"""Models with recurrent layers on devices: the logits of the CPU's model in any steps, from any snapshots, and on
several devices, in one lane and in two. The devices are the CPU's memory."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ballast._core import kernels
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.runner import with_changes
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.errors import ModelError
from ballast.model.batch import Batch
from ballast.model.hybrid.attention.device_kv_pool import LayerCache
from ballast.model.hybrid.backends import selection
from ballast.model.hybrid.compressed.compression import CompressedCache
from ballast.model.hybrid.compressed.plain import PlainCompression
from ballast.model.hybrid.graphs.decode_inputs import DecodeInputs
from ballast.model.hybrid.layers import table_rows
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.recurrent.plain import PlainRecurrence
from ballast.model.hybrid.recurrent.state_rows import StateRows
from ballast.model.hybrid.recurrent.triton_recurrence import TritonRecurrence
from ballast.model.hybrid.steps.slices import SliceSizes
from ballast.model.hybrid.steps.step import Step
from ballast.model.kv_pool import KvPool, StatePool, num_kv_blocks
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.plane import INDEX_KEYS
from ballast.model.metadata import read_spec
from ballast.model.packed_tensors import LayerTensors, Packing
from ballast.model.runner import Runner
from ballast.model.spec import ModelSpec
from ballast.model.transformer import Transformer
from ballast.model.weights import load_weights
from ballast.tiny.presets import PRESETS
from ballast.weights.gguf import open_gguf
from devkit.generate import Generated
from devkit.kernels.interpreted_recurrence import interpret_recurrence
from devkit.long import if_long, spread
from devkit.models import float_hybrid
from devkit.models.cpu_backend import CpuBackend, copied
from devkit.models.flash_next_files import other_flash_next
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.simulated_devices import SimulatedDevices, owner_of
from devkit.models.written import MakeTiny, write_tiny_model
from devkit.turns import SETTINGS as TURNS
from devkit.turns import cached, converse, texts

CPU = torch.device("cpu")
STREAM_FROM = 30
CLOSE = {"rtol": 1e-3, "atol": 2e-4}
OTHER_LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "older": ("qwen3next", {"product_layout": "grouped"}),
    "merged": ("qwen35", {"product_layout": "merged", "beta_layout": "merged"}),
}
"""Files whose recurrent layers store matrices in other ways than the preset: its name, and the layouts."""
PRESET_FILES = ["qwen3next", "qwen35", "kimilinear", "glm53flash", "qwen38flashnext", "v4"]
FILES = [*PRESET_FILES, *OTHER_LAYOUTS]
in_any_layout = pytest.mark.parametrize("file", [*PRESET_FILES, *if_long(*OTHER_LAYOUTS)], indirect=True)
"""For steps of a loaded model: loading brings matrices of other layouts into one order."""
SETTINGS = replace(TURNS, block_tokens=16)
"""A compressed entry takes the rows of 16 tokens of a block."""


@pytest.fixture(scope="module", params=FILES)
def file(request: pytest.FixtureRequest, written: MakeTiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param not in OTHER_LAYOUTS:
        return written(arch=request.param, mla="split", quant="f32").gguf
    arch, layouts = OTHER_LAYOUTS[request.param]
    shape = PRESETS[arch]
    assert shape.delta_net is not None
    shape = replace(shape, delta_net=replace(shape.delta_net, **layouts))
    return write_tiny_model(tmp_path_factory.mktemp(request.param), arch=arch, quant="f32", overrides=shape).gguf


def load(file: Path, settings: EngineSettings = SETTINGS, **options: Any) -> HybridModel:
    defaults: dict[str, Any] = {"kv_dtype": torch.float32, "stream_from_tokens": 0}
    return load_hybrid(file, CPU, settings, make_experts=FloatExperts, **(defaults | options))


def on_cpu(file: Path, spec_of: Callable[..., ModelSpec] = read_spec) -> Transformer:
    """The model without devices, in float32."""
    gguf = open_gguf(file)
    spec = spec_of(gguf, None)
    packing = Packing(kernels.ThreadPool(1), "reference", None)
    weights = load_weights(gguf, spec, spec.vocab_size, packing, lambda _: None)
    num_blocks = num_kv_blocks(SETTINGS.cache_lens, SETTINGS.block_tokens)
    kv, states = KvPool(spec.planes, num_blocks, SETTINGS.block_tokens), StatePool(spec.states, 16)
    return Transformer(spec, weights, packing.pool, "reference", kv, SETTINGS.cache_lens, states)


class Row:
    """One request's tokens of a step, in blocks of its own."""

    def __init__(
        self, request: int, begin: int, end: int, before: int, after: int, saves: Sequence[tuple[int, int]] = ()
    ) -> None:
        tokens = np.random.default_rng(request).integers(0, 300, 280).astype(np.int32)
        self.tokens = tokens[begin:end]
        self.earlier = np.concatenate([np.full(3, -1, np.int32), tokens])[begin : begin + 3]
        self.positions = np.arange(begin, end, dtype=np.int32)
        size = np.int32(SETTINGS.block_tokens)
        self.blocks = np.arange(-(-end // size), dtype=np.int32) + 1 + 14 * request
        self.slots = self.blocks[self.positions // size] * size + self.positions % size
        self.before, self.after, self.saves = before, after, saves


def batch_of(*rows: Row) -> Batch:
    """All logits are computed."""
    saves = [save for row in rows for save in row.saves]
    num_tokens = sum(len(row.tokens) for row in rows)
    return Batch(
        token_ids=np.concatenate([row.tokens for row in rows]),
        positions=np.concatenate([row.positions for row in rows]),
        slots=np.concatenate([row.slots for row in rows]),
        query_indptr=np.cumsum([0, *(len(row.tokens) for row in rows)]).astype(np.int32),
        kv_indptr=np.cumsum([0, *(len(row.blocks) for row in rows)]).astype(np.int32),
        kv_indices=np.concatenate([row.blocks for row in rows]),
        sampled=np.arange(num_tokens, dtype=np.int64),
        states=(
            np.array([row.before for row in rows], np.int32),
            np.array([row.after for row in rows], np.int32),
            np.cumsum([0, *(len(row.saves) for row in rows)]).astype(np.int32),
            np.array([end for end, _ in saves], np.int32),
            np.array([slot for _, slot in saves], np.int32),
        ),
        earlier_ids=np.concatenate([row.earlier for row in rows]),
    )


STEPS = [
    batch_of(Row(0, 0, 30, 0, 1, [(7, 2), (28, 3)]), Row(1, 0, 9, 0, 4)),
    batch_of(Row(1, 9, 10, 4, 4), Row(0, 30, 31, 1, 5)),
    batch_of(Row(1, 10, 11, 4, 6), Row(2, 0, 40, 0, 7, [(38, 8)]), Row(0, 31, 36, 5, 5, [(1, 9)])),
    batch_of(Row(0, 28, 36, 3, 10), Row(2, 38, 39, 8, 11)),  # from snapshots
    batch_of(Row(0, 36, 37, 5, 5), Row(1, 11, 12, 6, 6), Row(2, 40, 41, 7, 12)),
]


def logits_of(model: Runner, steps: Sequence[Batch] = STEPS) -> list[np.ndarray]:
    return [model.forward(batch, lambda: None).copy() for batch in steps]


def compare(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, **CLOSE)


def test_logits_are_those_of_the_cpu(file: Path) -> None:
    expected, model = logits_of(on_cpu(file)), load(file)
    found = logits_of(model)
    compare(found, expected)
    # Rows that begin from a snapshot, and those that have computed the same tokens before.
    np.testing.assert_allclose(found[3][7], found[2][-1], **CLOSE)
    np.testing.assert_allclose(found[3][8], found[2][39], **CLOSE)


@pytest.mark.parametrize("file", ["qwen3next", "kimilinear", *if_long("qwen35", *OTHER_LAYOUTS)], indirect=True)
def test_the_gpus_kernels_give_the_logits_of_the_cpu(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's interpreter, in the layers of the whole model."""

    class Interpreting(CpuBackend):
        def recurrence(self, mixer: Any, rms_eps: float) -> Any:
            return TritonRecurrence(mixer, rms_eps)

    interpret_recurrence(monkeypatch)
    steps = [
        batch_of(Row(0, 0, 11, 0, 1, [(7, 2)]), Row(1, 0, 3, 0, 4)),
        batch_of(Row(1, 3, 4, 4, 4), Row(0, 11, 12, 1, 5)),
        batch_of(Row(1, 4, 5, 4, 6), Row(0, 7, 12, 2, 7)),
    ]
    expected = logits_of(on_cpu(file), steps)
    monkeypatch.setitem(selection.MAKERS, "cpu", Interpreting)
    model = load_hybrid(file, CPU, SETTINGS, kv_dtype=torch.float32, stream_from_tokens=0)
    compare(logits_of(model, steps), expected)


@in_any_layout
def test_slices_of_a_step_pass_states_on(file: Path) -> None:
    expected, model = logits_of(load(file)), load(file, slices=SliceSizes(tokens=11, long_from=None))
    compare(logits_of(model), expected)


def test_matrices_of_different_types_give_the_logits_of_stacked_ones(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits_of(load(file))
    monkeypatch.setattr(LayerTensors, "are_stackable", lambda *_: False)
    compare(logits_of(load(file)), expected)


def test_long_slices_pass_states_on_outside_the_latent_space(written: MakeTiny) -> None:
    file = written(arch="kimilinear", mla="split", quant="f32").gguf
    expected = logits_of(load(file))
    model = load(file, slices=SliceSizes(tokens=11, long_tokens=20, long_from=15))
    batch = batch_of(Row(0, 0, 30, 0, 1, [(7, 2), (28, 3)]), Row(1, 0, 9, 0, 4))
    [device] = model.devices
    device.attention = device.prefill_attention
    step = device.prepared(batch, is_prefill=False)
    assert [part.is_long for part in step.slices] == [True, True, False]
    compare(logits_of(model), expected)


@pytest.mark.parametrize("arch", ["qwen3next", "qwen38flashnext"])
def test_chunks_of_the_gpus_kernels_are_in_the_logits(
    written: MakeTiny, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of several chunks gives the logits of steps of one token, through the tables that kernels read."""
    model = load(written(arch=arch, mla="split", quant="f32").gguf, replace(SETTINGS, prefill_chunk_size=160))
    seen: list[list[int]] = []
    update = PlainRecurrence.update

    def noted(self: PlainRecurrence, *arguments: Any) -> torch.Tensor:
        chunks = arguments[-1].chunks
        seen.append([] if chunks is None else chunks.ends.tolist())
        return update(self, *arguments)

    monkeypatch.setattr(PlainRecurrence, "update", noted)
    [whole] = logits_of(model, [batch_of(Row(0, 0, 150, 0, 1, [(70, 2)]))])
    assert seen[0] == [64, 70, 128, 150]
    parts = [batch_of(Row(0, at, at + 1, 0 if at == 0 else 3, 3)) for at in range(100)]
    parts.append(batch_of(Row(0, 100, 150, 3, 3)))
    np.testing.assert_allclose(np.concatenate(logits_of(model, parts)), whole, **CLOSE)
    [resumed] = logits_of(model, [batch_of(Row(0, 70, 150, 2, 4))])
    np.testing.assert_allclose(resumed, whole[70:], **CLOSE)


def test_entries_are_the_same_in_chunks_of_any_size(written: MakeTiny) -> None:
    """Of 4 and of 128 tokens; a request begins again from a snapshot within entries."""
    file = written(arch="v4", mla="split", quant="f32").gguf
    model = load(file, replace(SETTINGS, prefill_chunk_size=280))
    [expected] = logits_of(on_cpu(file), [batch_of(Row(2, 0, 270, 0, 1))])
    [whole] = logits_of(model, [batch_of(Row(2, 0, 270, 0, 1, [(131, 2)]))])
    np.testing.assert_allclose(whole, expected, **CLOSE)
    [resumed] = logits_of(model, [batch_of(Row(2, 131, 270, 2, 4))])
    np.testing.assert_allclose(resumed, expected[131:], **CLOSE)
    bounds = [*range(4), *range(4, 60, 7), *range(60, 188, 64), 188, 189, 190, 263, 270]
    parts = [batch_of(Row(2, *each, 3 if each[0] else 0, 3)) for each in itertools.pairwise(bounds)]
    np.testing.assert_allclose(np.concatenate(logits_of(model, parts)), expected, **CLOSE)


@pytest.mark.parametrize(("file", "split"), spread(FILES, [[1], [2, 3]]), indirect=["file"])
def test_states_are_on_the_devices_of_their_layers(file: Path, split: list[int], simulated: SimulatedDevices) -> None:
    one, several = load(file), load(file, split=split)
    for own, other in zip(logits_of(one), logits_of(several), strict=True):
        np.testing.assert_array_equal(other, own)
    for number, device in enumerate(several.devices):
        assert device.states.layers
        own = [tensor for layer in device.states.layers if layer is not None for tensor in layer]
        assert {owner_of(tensor) for tensor in own} <= {number}
    tensors = [layer for device in several.devices for layer in device.states.layers]
    for before, after in zip(one.devices[0].states.layers, tensors, strict=True):
        assert (before is None) == (after is None)
        for left, right in zip(before or (), after or (), strict=True):
            assert torch.equal(left.cpu(), right.cpu())
            assert left[1].any()


def test_only_attention_has_a_cache_and_only_recurrent_layers_states(file: Path) -> None:
    [device] = load(file).devices
    spec = read_spec(open_gguf(file), None)
    caches = [device.cache(layer) for layer in device.layers]
    kinds = [isinstance(cache, LayerCache | CompressedCache) and cache[0].shape[1] > 0 for cache in caches]
    assert kinds == [bool(planes) for planes in spec.planes]
    num_planes = sum(1 + any(plane.name == INDEX_KEYS for plane in planes) for planes in spec.planes if planes)
    assert len(device.kv.tensors) == len(device.kv.has_windows) == num_planes
    assert 0 < sum(kinds) < len(kinds)
    assert [layer is not None for layer in device.states.layers] == [bool(states) for states in spec.states]
    own = [[state.size for state in states] for states in spec.states]
    found = [sum(each[0].numel() for each in layer or ()) for layer in device.states.layers]
    assert found == [sum(sizes) for sizes in own]


OTHER_FLASH_NEXT = other_flash_next(pool=2)


@pytest.mark.parametrize("case", OTHER_FLASH_NEXT)
def test_other_streams_tables_and_pools_give_the_logits_of_the_cpu(tmp_path: Path, case: str) -> None:
    shape = replace(PRESETS["qwen38flashnext"], **OTHER_FLASH_NEXT[case])
    file = write_tiny_model(tmp_path, arch="qwen38flashnext", quant="f32", overrides=shape).gguf
    compare(logits_of(load(file), STEPS[:3]), logits_of(on_cpu(file), STEPS[:3]))


def test_layers_without_an_indexer_attend_to_all_positions(written: MakeTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another layer selects blocks."""
    file = written(arch="qwen38flashnext", mla="split", quant="f32").gguf

    def spec_of(*given: Any) -> ModelSpec:
        spec = read_spec(*given)
        *others, last = spec.layers
        assert isinstance(last.mixer, GroupedSpec)
        return replace(spec, layers=(*others, replace(last, mixer=replace(last.mixer, index=None))))

    settings = replace(SETTINGS, prefill_chunk_size=100)
    steps = [batch_of(Row(0, 0, 100, 0, 1)), batch_of(Row(0, 100, 101, 1, 1))]
    selected = logits_of(load(file, settings), steps)
    monkeypatch.setattr(float_hybrid, "read_spec", spec_of)
    found = logits_of(load(file, settings), steps)
    compare(found, logits_of(on_cpu(file, spec_of), steps))
    assert np.abs(found[1] - selected[1]).max() > 0.01


def test_a_pass_gets_the_rows_of_ngrams_piece_by_piece(
    written: MakeTiny, simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two devices adds them."""
    monkeypatch.setattr(table_rows, "ROWS_AT_ONCE", 24)
    file = written(arch="qwen38flashnext", mla="split", quant="f32").gguf
    model, batch = load(file, split=[1], stream_from_tokens=STREAM_FROM), batch_of(Row(0, 0, 40, 0, 1))
    [expected] = logits_of(on_cpu(file), [batch])
    model.open_prefill_lane()
    model.begin_prefill(batch)
    num_pieces = 1
    while not model.advance_prefill(lambda: None):
        num_pieces += 1
    np.testing.assert_allclose(model.prefill_logits(), expected, **CLOSE)
    assert num_pieces > 40 * 8 // 24


@in_any_layout
def test_padding_leaves_no_state(file: Path) -> None:
    [device] = (model := load(file)).devices
    model.warm_up([1, 40], model._experts._host.idle(), range(len(device.layers)))
    assert not any(tensor.any() for layer in device.states.layers if layer is not None for tensor in layer)


@in_any_layout
def test_a_token_without_a_state_begins_a_text(file: Path) -> None:
    model, batch = load(file), batch_of(Row(0, 0, 20, 0, 1))
    logits_of(model)  # so that slots hold something
    [whole] = logits_of(model, [batch])
    [alone] = logits_of(model, [replace(batch, states=None)])
    np.testing.assert_array_equal(alone, whole)


def test_decode_inputs_have_the_slots_of_their_rows() -> None:
    inputs = DecodeInputs(3, 4, 8, CPU, copied, has_states=True, has_ids=True)
    batch = batch_of(Row(0, 9, 10, 5, 6), Row(1, 3, 4, 7, 7))
    inputs.send_tables(batch)
    step = inputs.of_size(2).step
    assert step.states is not None
    assert (step.states.before.tolist(), step.states.after.tolist()) == ([5, 7], [6, 7])
    assert (step.states.num_single, step.states.chunks) == (2, None)
    assert step.states.owners.tolist() == [0, 1]
    inputs.send_ids(batch.token_ids)
    assert step.token_ids is not None
    assert step.token_ids.tolist() == batch.token_ids.tolist()
    assert step.slots.tolist() == batch.slots.tolist()
    assert step.requests.lens.tolist() == [10, 4]
    assert all(table.data_ptr() % 16 == 0 for table in (step.states.before, step.states.after))
    inputs.send_tables(replace(batch, states=None))
    assert (step.states.before.tolist(), step.states.after.tolist()) == ([0, 0], [0, 0])
    inputs.send_tables(batch)
    inputs.send_padding(2)
    assert (step.states.before.tolist(), step.states.after.tolist()) == ([0, 0], [0, 0])
    with pytest.raises(ValueError, match="2 tokens of 2 requests leave 1 further states"):
        inputs.send_tables(batch_of(Row(0, 9, 10, 5, 6, [(1, 8)]), Row(1, 3, 4, 7, 7)))


def core_of(model: HybridModel, settings: EngineSettings = SETTINGS, *, lanes: int = 1, **changes: Any) -> EngineCore:
    config = scheduler_config(replace(settings, stream_from_tokens=STREAM_FROM))
    return EngineCore(model, with_changes(config, **({"prefill_costs": [(1, 1.0)]} if lanes == 2 else {}), **changes))


def conversations(core: EngineCore) -> list[Generated]:
    """Three turns of four."""
    return converse(core, num_conversations=4, num_common=60, max_tokens=9, num_added=12)


@pytest.fixture(scope="module", params=["qwen3next", "glm53flash", "v4", *if_long("qwen38flashnext")])
def next_file(request: pytest.FixtureRequest, written: MakeTiny) -> Path:
    return written(arch=request.param, mla="split", quant="f32").gguf


@pytest.fixture(scope="module")
def expected(next_file: Path) -> list[tuple[int, ...]]:
    """Every token is computed for each request."""
    replies = conversations(core_of(load(next_file), prefix_cache=False))
    assert cached(replies) == 0
    assert len(set(texts(replies))) > len(replies) // 2, "the texts are too similar to prove anything"
    return texts(replies)


@pytest.mark.parametrize("lanes", [2, *if_long(1)])  # a test below continues from snapshots in one lane
def test_text_is_the_same_from_snapshots(next_file: Path, expected: list[tuple[int, ...]], lanes: int) -> None:
    model = load(next_file, stream_from_tokens=STREAM_FROM)
    core = core_of(model, lanes=lanes)
    replies = conversations(core)
    assert texts(replies) == expected
    assert cached(replies) > 4 * 60
    assert core.stats().snapshots > 4
    assert lanes == 1 or model.device_counts.streamed_steps > 3


@pytest.mark.parametrize("next_file", ["qwen3next", "glm53flash"], indirect=True)
def test_text_is_the_same_after_preemption(next_file: Path, expected: list[tuple[int, ...]]) -> None:
    settings = replace(TURNS, cache_lens=184, chunk_size=8, prefill_chunk_size=8)
    core = core_of(load(next_file, settings), settings)
    assert texts(conversations(core)) == expected
    assert core.stats().preemptions > 0, "the cache was too large to force a preemption"


@pytest.mark.parametrize("next_file", ["qwen3next", "glm53flash"], indirect=True)
@pytest.mark.parametrize("lanes", [2, *if_long(1)])
def test_text_is_the_same_on_several_devices(
    next_file: Path, expected: list[tuple[int, ...]], lanes: int, simulated: SimulatedDevices
) -> None:
    model = load(next_file, split=[1], stream_from_tokens=STREAM_FROM)
    assert texts(conversations(core_of(model, lanes=lanes))) == expected


def test_failed_requests_leave_no_state(
    next_file: Path, expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their states and snapshots hold NaN."""
    core = core_of(load(next_file))
    update, keep_window, attend = PlainRecurrence.update, PlainCompression.keep_window, PlainCompression.attend

    def spoil(states: torch.Tensor, rows: StateRows) -> None:
        for slots in (rows.after, *(() if rows.chunks is None else (rows.chunks.slots,))):
            states[slots] = torch.nan

    def with_nan(self: PlainRecurrence, *arguments: Any) -> torch.Tensor:
        out = update(self, *arguments)
        spoil(*arguments[-2:])
        return out * torch.nan

    def keep_nan(self: PlainCompression, key: torch.Tensor, window: torch.Tensor, step: Step) -> None:
        keep_window(self, key, window, step)
        assert step.states is not None
        spoil(window, step.states)

    for seq, length in enumerate((70, 33, 9), 1):
        prompt = tuple(random.Random(seq).randrange(300) for _ in range(length))
        core.add(seq, Request(str(seq), prompt, SamplingParams(max_tokens=9, temperature=0.0)), 0)
    core.step()
    failed = []
    with monkeypatch.context() as patch:
        patch.setattr(PlainRecurrence, "update", with_nan)
        patch.setattr(PlainCompression, "keep_window", keep_nan)
        patch.setattr(PlainCompression, "attend", lambda *arguments: attend(*arguments) * torch.nan)
        for _ in range(12):
            failed += [seq for seq, _ in core.step().failed]
            core.check()
    assert sorted(failed) == [1, 2, 3]
    assert core.stats().snapshots == 0
    replies = conversations(core)
    assert texts(replies) == expected
    assert cached(replies) > 4 * 60
    assert core.stats().snapshots > 4


def test_a_device_that_cannot_compute_the_heads_is_named(written: MakeTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(CpuBackend):
        def recurrence(self, mixer: Any, rms_eps: float) -> Any:
            return TritonRecurrence(replace(mixer, key_dim=24), rms_eps)

    file = written(arch="qwen3next", quant="f32").gguf
    monkeypatch.setitem(selection.MAKERS, "cpu", Refusing)
    with pytest.raises(ModelError, match="recurrent layers have keys of 24 and values of"):
        load_hybrid(file, CPU, SETTINGS)
