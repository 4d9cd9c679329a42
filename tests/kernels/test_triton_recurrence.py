"""The kernels of recurrent layers against the definition in double precision and against the CPU's kernels, by Triton's
interpreter, and on a GPU if there is one; compiled for a GPU that is not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton
from torch.nn import functional
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ballast._core import kernels
from ballast.model.batch import Batch
from ballast.model.hybrid.recurrent import (
    chunk_kernels,
    conv_kernels,
    delta_kernels,
    row_decay_kernels,
    triton_convolution,
    triton_recurrence,
)
from ballast.model.hybrid.recurrent.plain import PlainRecurrence
from ballast.model.hybrid.recurrent.plain import convolve as plain_convolve
from ballast.model.hybrid.recurrent.recurrence import NORM_EPS, Gates
from ballast.model.hybrid.recurrent.sizes import sizes_of
from ballast.model.hybrid.recurrent.state_rows import StateRows, planned_rows
from ballast.model.hybrid.recurrent.triton_recurrence import TritonRecurrence
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.layer import RecurrentMixer
from devkit.kernels.interpreted_recurrence import interpret_recurrence

EPS = 1e-6
NUM_SLOTS = 9
CLOSE = {"rtol": 2e-4, "atol": 2e-5}
"""Sums are taken in another order, and chunks subtract sums of logarithms."""
NET = DeltaNetSpec(num_heads=4, num_key_heads=2, key_dim=32, v_dim=32, conv_taps=4)
NETS = [
    NET,
    replace(NET, num_heads=6, heads_alternate=True, v_dim=96),
    replace(NET, num_key_heads=1, num_heads=1, key_dim=16, v_dim=64, conv_taps=2),
]
KIMI_NETS = [
    KimiDeltaSpec(num_heads=3, head_dim=32, conv_taps=4),
    KimiDeltaSpec(num_heads=1, head_dim=64, conv_taps=2, lower_bound=-5.0),
]
ALL_NETS: list[RecurrentMixer] = [*NETS, *KIMI_NETS]


class Row(NamedTuple):
    """One request's tokens of a step."""

    num_tokens: int
    position: int
    before: int
    after: int
    saves: tuple[tuple[int, int], ...] = ()
    """(tokens before it, slot)"""


ONE_EACH = [Row(1, 5, 2, 2), Row(1, 0, 0, 3), Row(1, 64, 4, 5), Row(1, 0, 0, 0)]
LONG = [Row(150, 0, 0, 1, ((7, 2), (64, 3), (65, 4)))]
MIXED = [
    Row(1, 77, 5, 5),
    Row(2, 3, 6, 6, ((1, 7),)),
    Row(70, 60, 8, 1, ((4, 2), (70, 3))),
    Row(3, 0, 0, 4),
    Row(1, 9, 0, 0),
]
STEPS = {"one each": ONE_EACH, "long": LONG, "mixed": MIXED}


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    interpret_recurrence(monkeypatch)
    return torch.device("cpu")


def batch_of(rows: Sequence[Row]) -> Batch:
    counts = [row.num_tokens for row in rows]
    saves = [save for row in rows for save in row.saves]
    empty = np.zeros(0, np.int32)
    return Batch(
        token_ids=np.zeros(sum(counts), np.int32),
        positions=np.concatenate([row.position + np.arange(row.num_tokens, dtype=np.int32) for row in rows]),
        slots=empty,
        query_indptr=np.cumsum([0, *counts]).astype(np.int32),
        kv_indptr=empty,
        kv_indices=empty,
        sampled=np.zeros(0, np.int64),
        states=(
            np.array([row.before for row in rows], np.int32),
            np.array([row.after for row in rows], np.int32),
            np.cumsum([0, *(len(row.saves) for row in rows)]).astype(np.int32),
            np.array([end for end, _ in saves], np.int32),
            np.array([slot for _, slot in saves], np.int32),
        ),
    )


def rows_on(device: torch.device, rows: Sequence[Row]) -> StateRows:
    batch = batch_of(rows)
    return planned_rows(batch, 0, len(batch.token_ids)).send(lambda host: torch.from_numpy(host).to(device))


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Inputs(NamedTuple):
    """Of a layer with a mixer."""

    x: torch.Tensor
    conv: torch.Tensor
    products: torch.Tensor
    rate: torch.Tensor
    rate_shift: torch.Tensor
    inputs: torch.Tensor
    states: torch.Tensor

    def on(self, device: torch.device, dtype: torch.dtype) -> Inputs:
        return Inputs(*(each.to(device, dtype, copy=True) for each in self))


def inputs_of(mixer: RecurrentMixer, num_tokens: int) -> Inputs:
    """Slots that no row may read hold NaN; decays are from 0.2 to 1."""
    net = sizes_of(mixer)
    inputs, states = (
        torch.cat([torch.full((1, *shape), torch.nan), random(NUM_SLOTS - 1, *shape)])
        for shape in ((net.conv_taps - 1, net.channels), (net.num_heads, net.key_dim, net.v_dim))
    )
    num_decays = net.num_heads * (net.key_dim if net.decays_rows else 1)
    return Inputs(
        random(num_tokens, net.channels + 8)[:, : net.channels],
        random(net.conv_taps, net.channels),
        random(num_tokens, net.num_heads + num_decays),
        -torch.linspace(0.05, 1.0, net.num_heads),
        random(num_decays) * 2,
        inputs,
        states,
    )


def gates_of(mixer: RecurrentMixer, products: torch.Tensor, *, is_grouped: bool = False) -> Gates:
    net = sizes_of(mixer)
    group = net.num_heads // net.num_key_heads
    return Gates(products, products, group) if is_grouped else Gates(*products.tensor_split((net.num_heads,), 1))


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double().cpu(), expected.double().cpu(), equal_nan=True, **CLOSE)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("net", ALL_NETS)
def test_convolutions_keep_the_last_inputs(device: torch.device, net: RecurrentMixer, step: str) -> None:
    num_tokens, channels = sum(row.num_tokens for row in STEPS[step]), sizes_of(net).channels
    given = inputs_of(net, num_tokens)
    plain, fused = given.on(torch.device("cpu"), torch.float64), given.on(device, torch.float32)
    expected = PlainRecurrence(net, EPS).convolve(
        plain.x, plain.conv, plain.inputs, rows_on(torch.device("cpu"), STEPS[step])
    )
    wide = torch.zeros(num_tokens, channels + 8, device=device)[:, :channels].copy_(fused.x)
    found = TritonRecurrence(net, EPS).convolve(wide, fused.conv, fused.inputs, rows_on(device, STEPS[step]))
    close(found, expected)
    close(fused.inputs, plain.inputs)


@pytest.mark.parametrize("step", STEPS)
def test_convolutions_skip_inputs_without_weights(device: torch.device, step: str) -> None:
    """Every third of ten inputs has weights, as in the n-gram embedding."""
    num_tokens, width = sum(row.num_tokens for row in STEPS[step]), 40
    x, inputs, taps = random(num_tokens, width), random(NUM_SLOTS, 9, width), random(4, width)
    weights = torch.zeros(10, width)
    weights[::3] = taps
    plain, fused = inputs.double(), inputs.to(device, copy=True)
    expected = plain_convolve(x.double(), weights.double(), plain, rows_on(torch.device("cpu"), STEPS[step]))
    found = triton_convolution.convolve(x.to(device), weights.to(device), fused, rows_on(device, STEPS[step]))
    close(found, expected)
    close(fused[1:], plain[1:])
    first = STEPS[step][0]
    seen = torch.cat([inputs[first.before] if first.before else torch.zeros(9, width), x[: first.num_tokens]])
    close(found[0], functional.silu(sum(seen[3 * tap] * weight for tap, weight in enumerate(taps))))


@pytest.mark.parametrize(
    ("net", "step", "is_grouped"),
    [*((net, step, False) for net in ALL_NETS for step in STEPS), *((net, "mixed", True) for net in NETS)],
)
def test_states_follow_the_definition(device: torch.device, net: RecurrentMixer, step: str, is_grouped: bool) -> None:
    given = inputs_of(net, sum(row.num_tokens for row in STEPS[step]))
    found, states = [], []
    for kind, on, dtype in (
        (PlainRecurrence, torch.device("cpu"), torch.float64),
        (TritonRecurrence, device, torch.float32),
    ):
        own = given.on(on, dtype)
        gates = gates_of(net, own.products, is_grouped=is_grouped)
        rows = rows_on(on, STEPS[step])
        found.append(kind(net, EPS).update(own.x.contiguous(), gates, own.rate, own.rate_shift, own.states, rows))
        states.append(own.states)
    close(found[1], found[0])
    close(states[1], states[0])
    unused = set(range(NUM_SLOTS)) - {slot for row in STEPS[step] for slot in (row.after, *dict(row.saves).values())}
    for slot in unused:
        assert torch.equal(states[1][slot].cpu().nan_to_num(7), given.states[slot].nan_to_num(7))


@pytest.mark.parametrize("net", ALL_NETS)
def test_steps_of_any_length_give_the_same_numbers(device: torch.device, net: RecurrentMixer) -> None:
    """100 tokens in one step; token by token at the beginning and the end; from a state that a step left on its way."""
    given = inputs_of(net, 100).on(device, torch.float32)
    recurrence = TritonRecurrence(net, EPS)

    def update(begin: int, end: int, row: Row) -> torch.Tensor:
        gates = gates_of(net, given.products[begin:end])
        x = given.x[begin:end].clone()
        rows = rows_on(device, [row])
        return recurrence.update(x, gates, given.rate, given.rate_shift, given.states, rows)

    whole = update(0, 100, Row(100, 0, 0, 1, ((30, 2),)))
    begun = [update(at, at + 1, Row(1, at, 0 if at == 0 else 3, 3)) for at in range(20)]
    begun.append(update(20, 97, Row(77, 20, 3, 3)))
    begun += [update(at, at + 1, Row(1, at, 3, 3)) for at in range(97, 100)]
    close(torch.cat(begun), whole)
    close(given.states[3], given.states[1])
    close(update(30, 100, Row(70, 30, 2, 4)), whole[30:])
    close(given.states[4], given.states[1])


@pytest.mark.parametrize(("alpha", "beta"), [(-12.0, 9.0), (-12.0, -3.0), (30.0, 9.0)])
def test_equal_keys_replace_what_was_remembered(device: torch.device, alpha: float, beta: float) -> None:
    """The inverse of a chunk's matrix is hardest to find where keys are equal and nothing is forgotten; where all is
    forgotten immediately, sums of logarithms are largest."""
    net = NETS[2]
    given = inputs_of(net, 150)
    given.x[:, net.key_width : 2 * net.key_width] = given.x[0, net.key_width : 2 * net.key_width]
    given.products[:] = torch.tensor([beta, alpha])
    found = []
    for kind, on, dtype in (
        (PlainRecurrence, torch.device("cpu"), torch.float64),
        (TritonRecurrence, device, torch.float32),
    ):
        own = given.on(on, dtype)
        gates = gates_of(net, own.products)
        rows = rows_on(on, LONG)
        out = kind(net, EPS).update(own.x.contiguous(), gates, own.rate, own.rate_shift * 0, own.states, rows)
        found.append((out, own.states[1:5]))
    close(found[1][0], found[0][0])
    close(found[1][1], found[0][1])


def mixed_decays(net: KimiDeltaSpec, num_tokens: int) -> Inputs:
    """Rows of a state are kept, decay, or are forgotten at once, by token and by row; all are forgotten by tokens 4 to
    13, after which most are kept."""
    given = inputs_of(net, num_tokens)
    levels = torch.tensor([-12.0, -12.0, 0.0, 30.0])
    chosen = torch.randint(4, (num_tokens, net.width), generator=torch.Generator().manual_seed(3))
    given.products[:, net.num_heads :] = levels[chosen]
    given.products[4:14, net.num_heads :] = 30.0
    given.products[14:40, net.num_heads :] = -5.0
    rate = -1.0 if net.lower_bound else -16.0  # which would keep nothing or all
    return given._replace(rate=given.rate * 0 + rate, rate_shift=given.rate_shift * 0)


@pytest.mark.parametrize("net", KIMI_NETS)
def test_strong_decays_of_rows_neither_overflow_nor_cancel(device: torch.device, net: KimiDeltaSpec) -> None:
    """A chunk's sums of logarithms reach -20,000: their exponentials underflow, and differences of such sums would be
    wrong by 1e-3."""
    given = mixed_decays(net, 150)
    found = []
    for kind, on, dtype in (
        (PlainRecurrence, torch.device("cpu"), torch.float64),
        (TritonRecurrence, device, torch.float32),
    ):
        own = given.on(on, dtype)
        gates, rows = gates_of(net, own.products), rows_on(on, LONG)
        out = kind(net, EPS).update(own.x.contiguous(), gates, own.rate, own.rate_shift, own.states, rows)
        found.append((out, own.states[1:5]))
    close(found[1][0], found[0][0])
    close(found[1][1], found[0][1])


@pytest.mark.parametrize("step", ["one each", "mixed"])
@pytest.mark.parametrize("net", ALL_NETS)
def test_a_gpu_computes_what_the_cpu_does(device: torch.device, net: RecurrentMixer, step: str) -> None:
    rows, pool, sizes = STEPS[step], kernels.ThreadPool(1), sizes_of(net)
    num_tokens = sum(row.num_tokens for row in rows)
    given, batch = inputs_of(net, num_tokens), batch_of(STEPS[step])
    host, fused = given.on(torch.device("cpu"), torch.float32), given.on(device, torch.float32)
    assert batch.states is not None
    shared: dict[str, Any] = {"token_indptr": batch.query_indptr, "slots": batch.states, "isa": "reference"}
    convolved = np.empty((num_tokens, sizes.channels), np.float32)
    kernels.short_conv(
        pool,
        x=host.x.contiguous().numpy(),
        weights=host.conv.numpy(),
        states=host.inputs.numpy(),
        out=convolved,
        **shared,
    )
    recurrence, table = TritonRecurrence(net, EPS), rows_on(device, rows)
    found = recurrence.convolve(fused.x.contiguous(), fused.conv, fused.inputs, table)
    close(found, torch.from_numpy(convolved))
    close(fused.inputs[1:], host.inputs[1:])
    gates = gates_of(net, fused.products)
    out = recurrence.update(found, gates, fused.rate, fused.rate_shift, fused.states, table)
    keyed = convolved[:, : 2 * sizes.key_width].reshape(num_tokens, 2, sizes.num_key_heads, sizes.key_dim)
    keyed = keyed / np.sqrt(np.square(keyed).sum(-1, keepdims=True) + NORM_EPS)
    beta, alpha = host.products.tensor_split((sizes.num_heads,), 1)
    shifted = (alpha + host.rate_shift).view(num_tokens, sizes.num_heads, -1)
    rates, bound = host.rate[:, None], sizes.lower_bound
    log_decays = bound * (-rates * shifted).sigmoid() if bound else rates * torch.nn.functional.softplus(shifted)
    decays = log_decays.exp().numpy()
    expected = np.empty((num_tokens, sizes.num_heads, sizes.v_dim), np.float32)
    kernels.delta_rule(
        pool,
        queries=keyed[:, 0] / np.float32(np.sqrt(sizes.key_dim)),
        keys=np.ascontiguousarray(keyed[:, 1]),
        values=np.ascontiguousarray(convolved[:, 2 * sizes.key_width :]).reshape(expected.shape),
        decays=decays if sizes.decays_rows else decays[:, :, 0],
        betas=beta.sigmoid().contiguous().numpy(),
        states=host.states.numpy(),
        out=expected,
        heads_alternate=sizes.heads_alternate,
        **shared,
    )
    close(out, torch.from_numpy(expected))
    close(fused.states[1:], host.states[1:])


@pytest.mark.parametrize("net", ALL_NETS)
def test_heads_are_normed_and_gated(device: torch.device, net: RecurrentMixer) -> None:
    sizes = sizes_of(net)
    values, weight = random(5, sizes.num_heads, sizes.v_dim), random(sizes.v_dim)
    gates = random(5, sizes.num_heads * sizes.v_dim + 8)[:, 8:]
    expected = PlainRecurrence(net, EPS).gated_norm(values.double(), gates.double(), weight.double())
    strided = torch.zeros(5, gates.shape[1] + 8, device=device)[:, 8:].copy_(gates)
    found = TritonRecurrence(net, EPS).gated_norm(values.to(device), strided, weight.to(device))
    close(found, expected)


def test_softplus_is_exact_for_small_and_large_numbers(device: torch.device) -> None:
    """Decays near 1 are what long texts are remembered with."""
    alphas = torch.tensor([-80.0, -20.0, -12.5, -6.0, -1.0, -0.0, 1e-3, 0.7, 5.0, 19.0, 21.0, 90.0])
    net = replace(NET, num_key_heads=1, num_heads=1)
    decays, betas = (torch.empty(len(alphas), 1, device=device) for _ in range(2))
    inputs, zero = torch.ones(len(alphas), net.channels, device=device), torch.zeros(1, device=device)
    own = alphas[:, None].to(device)
    triton_recurrence.delta_kernels.prepare[(len(alphas),)](
        inputs, own, own, zero - 1, zero, decays, betas, EPS, 1.0,
        HEADS=1, KEY_HEADS=1, KEY=net.key_dim, CHANNELS=net.channels, BETA_STRIDE=1, ALPHA_STRIDE=1, GROUP=0,
        PADDED_HEADS=1, PADDED_KEY_HEADS=1,
    )  # fmt: skip
    expected = torch.log1p(alphas.double().exp())
    torch.testing.assert_close(-decays[:, 0].double().cpu(), expected, rtol=1e-6, atol=1e-30)


def test_chunks_end_at_multiples_and_where_states_are_left() -> None:
    rows = planned_rows(batch_of(MIXED), 0, 77)
    assert (rows.begins, rows.num_single) == ([0, 1, 3, 73, 76, 77], 1)
    assert rows.chunks == [
        (1, 1, 2, 7),
        (1, 2, 3, 6),
        (2, 3, 7, 2),
        (2, 7, 71, 0),
        (2, 71, 73, 3),
        (2, 73, 73, 1),
        (3, 73, 76, 4),
        (4, 76, 77, 0),
    ]
    sent = rows_on(torch.device("cpu"), MIXED).chunks
    assert sent is not None
    assert sent.of_row.tolist() == [0, 0, 2, 6, 7, 8]
    assert rows_on(torch.device("cpu"), ONE_EACH).chunks is None
    assert planned_rows(batch_of(LONG), 0, 150).chunks == [
        (0, 0, 7, 2),
        (0, 7, 64, 3),
        (0, 64, 65, 4),
        (0, 65, 128, 0),
        (0, 128, 150, 1),
    ]


def test_parts_of_a_row_pass_the_state_on_in_the_slot_after_it() -> None:
    batch = batch_of([Row(2, 0, 0, 5), Row(10, 20, 3, 4, ((3, 6), (5, 7), (9, 8)))])
    first, second, last = (planned_rows(batch, begin, end) for begin, end in ((0, 5), (5, 9), (9, 12)))
    assert (first.before, first.after, first.chunks) == ([0, 3], [5, 4], [(0, 0, 2, 5), (1, 2, 5, 6), (1, 5, 5, 4)])
    assert (second.before, second.after, second.chunks) == ([4], [4], [(0, 0, 2, 7), (0, 2, 4, 4)])
    assert (last.before, last.after, last.chunks) == ([4], [4], [(0, 0, 2, 8), (0, 2, 3, 4)])


@pytest.mark.parametrize("sizes", [{"key_dim": 48}, {"key_dim": 8}, {"v_dim": 48}, {"key_dim": 256}])
def test_other_widths_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"keys of \d+ and values of \d+ numbers; kernels on a GPU"):
        TritonRecurrence(replace(NET, **sizes), EPS)


KNOWN = {"HEADS": 32, "KEY_HEADS": 16, "KEY": 128, "VALUE": 128, "CHANNELS": 8192, "TOKENS": 64, "BLOCK": 32}
KNOWN |= {"X_STRIDE": 12288, "TAPS": 4, "BETA_STRIDE": 64, "ALPHA_STRIDE": 64, "GATE_STRIDE": 12288}
KNOWN |= {"DECAYS_ROWS": False, "SIGMOID": False, "PADDED_HEADS": 32, "PADDED_KEY_HEADS": 16, "PADDED_VALUE": 128}

KIMI = {"KEY_HEADS": 32, "CHANNELS": 12288, "ALPHA_STRIDE": 4096, "ALTERNATE": False, "DECAYS_ROWS": True}


@pytest.mark.parametrize(
    ("module", "name", "changes"),
    [
        (conv_kernels, "convolve_one_each", {"BLOCK": 256}),
        (conv_kernels, "convolve", {"BLOCK": 64}),
        (conv_kernels, "keep_inputs", {"BLOCK": 256}),
        (delta_kernels, "prepare", {"GROUP": 2}),
        (delta_kernels, "prepare", {"GROUP": 0, "HEADS": 64, "PADDED_HEADS": 64}),
        (delta_kernels, "update_one_each", {"ALTERNATE": True}),
        (delta_kernels, "gated_norm", {"BLOCK": 8}),
        *((chunk_kernels, name, {"ALTERNATE": way}) for name in ("solve_chunks", "pass_chunks") for way in (0, 1)),
        (delta_kernels, "update_one_each", KIMI),
        (delta_kernels, "gated_norm", {"BLOCK": 8, "SIGMOID": True}),
        (chunk_kernels, "pass_chunks", KIMI),
        *((row_decay_kernels, "prepare_rows", KIMI | {"BLOCK": 8, "BOUND": bound}) for bound in (0.0, -5.0)),
        *((row_decay_kernels, name, KIMI | {"BLOCK": 16}) for name in ("score_blocks", "invert_chunks", "fade_chunks")),
    ],
)
@pytest.mark.usefixtures("kept_kernels")
def test_kernels_compile_for_a_gpu(module: Any, name: str, changes: dict[str, int]) -> None:
    integers = (
        "row_begins",
        "before",
        "after",
        "chunk_rows",
        "chunk_begins",
        "chunk_ends",
        "chunk_slots",
        "row_chunks",
    )
    kinds = {"eps": "fp32", "query_scale": "fp32", "first_row": "i32"} | dict.fromkeys(integers, "*i32")
    function, known = getattr(module, name), KNOWN | changes
    constants = {each: known[each] for each in function.arg_names if each in known}
    types = {each: "constexpr" if each in constants else kinds.get(each, "*fp32") for each in function.arg_names}
    compiled = triton.compile(
        ASTSource(function, types, constexprs=constants),
        target=GPUTarget("cuda", 90, 32),
        options={"num_stages": 1} if module in (chunk_kernels, row_decay_kernels) else {},
    )
    # Of a consumer GPU with compute capability 8.9 or 12.0.
    assert compiled.metadata.shared <= 99 << 10
