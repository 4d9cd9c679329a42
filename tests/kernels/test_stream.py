"""The kernels of streams of several rows against torch's operations, by Triton's interpreter, and on a GPU."""

from __future__ import annotations

import pytest
import torch

from ballast.model.hybrid.linear import FloatLinear, as_one
from ballast.model.hybrid.residual import gate_kernels, gated, stream_kernels, triton_gates, triton_stream
from ballast.model.hybrid.residual.gated import GatedResidual
from ballast.model.hybrid.residual.residual import BlockInput, Connection, MixedResidual, Stream, StreamGates
from ballast.model.hybrid.residual.triton_gates import TritonRowGates
from ballast.model.hybrid.residual.triton_stream import TritonStreamMixer
from ballast.model.layers.stream import GatedStreamSpec, StreamSpec
from ballast.model.rope import unrotated
from devkit.kernels.interpreted import interpreted
from devkit.kernels.torch_pointwise import TorchPointwise
from devkit.kernels.torch_stream import TorchRowGates, TorchStreamMixer

CLOSE = {"rtol": 2e-5, "atol": 1e-5}
EPS = 1e-5


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    monkeypatch.setattr(triton_stream, "stream_kernels", interpreted(stream_kernels, monkeypatch))
    monkeypatch.setattr(triton_gates, "gate_kernels", interpreted(gate_kernels, monkeypatch))
    return torch.device("cpu")


def random(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(device)


def connection_on(device: torch.device, spec: StreamSpec, width: int) -> Connection:
    products = random(1, spec.num_weights, spec.num_rows * width, device=device) / width**0.5
    base, scales = random(spec.num_weights, device=device), random(3, device=device)
    return Connection(FloatLinear(products), base, scales)


@pytest.mark.parametrize("num_tokens", [1, 5])
@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize(("num_rows", "rounds", "width"), [(4, 20, 96), (4, 3, 4096), (2, 1, 640)])
def test_rows_are_mixed_added_to_and_read(
    device: torch.device, num_rows: int, rounds: int, width: int, num_parts: int, num_tokens: int
) -> None:
    spec = StreamSpec(num_rows, rounds, 1e-6)
    connection, norm = connection_on(device, spec, width), random(width, device=device)
    parts = tuple(random(num_tokens, width + part, device=device)[:, :width].contiguous() for part in range(num_parts))
    results = []
    for mixer in (TorchStreamMixer(spec, EPS), TritonStreamMixer(spec, EPS)):
        rows = random(num_tokens, num_rows, width, device=device)
        products = connection.products(rows.flatten(1))
        first, weights = mixer.read(rows, products, connection, norm)
        mixer.mix(rows, parts, weights)
        second, _ = mixer.read(rows, products, connection, norm)
        results.append((first, weights, rows, second))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)


def test_a_stream_is_read_as_it_is_defined(device: torch.device) -> None:
    """Columns of the mixing matrix sum to 1, all blocks that add nothing keep equal rows, and the end is the mean."""
    spec, width = StreamSpec(4, 20, 1e-6), 64
    pointwise = TorchPointwise(EPS, unrotated(0), device)
    residual = MixedResidual(spec, TritonStreamMixer(spec, EPS), pointwise, EPS)
    embedded, norm = random(3, width, device=device), torch.ones(width, device=device)
    block = BlockInput(norm, connection_on(device, spec, width))
    stream = Stream(residual.begin(embedded))
    normed = residual.next_block(stream, (), block)
    assert stream.weights is not None
    sums = stream.weights[:, 8:].view(3, 4, 4).sum(1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-4)
    torch.testing.assert_close(normed, pointwise.norm(embedded, norm), rtol=1e-3, atol=1e-3)
    residual.next_block(stream, (torch.zeros_like(embedded),), block)
    torch.testing.assert_close(stream.rows, embedded[:, None].expand(-1, 4, -1), rtol=1e-3, atol=1e-3)
    found = residual.finish(stream, (torch.zeros_like(embedded),), BlockInput(norm))
    torch.testing.assert_close(found, pointwise.norm(embedded, norm), rtol=1e-3, atol=1e-3)


def gates_on(device: torch.device, spec: GatedStreamSpec, width: int) -> BlockInput:
    down = random(1, spec.rank + spec.num_rows, spec.num_rows * width, device=device) / width**0.5
    up = random(1, spec.num_rows * width, spec.rank, device=device) / spec.rank**0.5
    connection = StreamGates(as_one(FloatLinear(down), [spec.rank, spec.num_rows]), FloatLinear(up))
    return BlockInput(random(spec.num_rows * width, device=device), connection)


@pytest.mark.parametrize("num_tokens", [1, 5])
@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize(("num_rows", "width"), [(4, 2560), (3, 96), (2, 640)])
def test_gated_rows_are_normed_averaged_and_added_to(
    device: torch.device, num_rows: int, width: int, num_parts: int, num_tokens: int
) -> None:
    norm, gates = random(num_rows * width, device=device), random(num_tokens, num_rows * width, device=device)
    parts = tuple(random(num_tokens, width + part, device=device)[:, :width].contiguous() for part in range(num_parts))
    products = random(num_tokens, num_rows + 7, device=device)[:, 7:]
    results = []
    for operations in (TorchRowGates(EPS), TritonRowGates(EPS)):
        rows = random(num_tokens, num_rows, width, device=device)
        normed = operations.norm(rows, norm)
        operations.add(rows, parts, products)
        added, both = rows.clone(), operations.norm(rows, norm, parts, products)
        results.append((normed, operations.mean(normed, gates), added, both, rows, operations.low(products, num_rows)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)


def test_a_gated_stream_is_read_as_it_is_defined(device: torch.device) -> None:
    spec, width = GatedStreamSpec(4, 24), 64
    residual, block = GatedResidual(spec, TritonRowGates(EPS)), gates_on(device, spec, width)
    assert isinstance(block.connection, StreamGates)
    stream = Stream(residual.begin(random(3, width, device=device)))
    stream.rows += random(3, 4, width, device=device)
    before = stream.rows.clone()
    read = residual.next_block(stream, (), block)
    added = random(3, width, device=device)
    residual.add(stream, (added,))
    normed = before * (before.square().mean(2, keepdim=True) + EPS).rsqrt() * block.norm.view(4, width)
    low, products = block.connection.down(normed.flatten(1) / 4)
    gates = block.connection.up(low * low.sigmoid()).sigmoid().view(3, 4, width)
    torch.testing.assert_close(read, (gates * normed).mean(1), rtol=1e-4, atol=1e-4)
    expected = before + 2 * products.sigmoid()[..., None] * added[:, None]
    torch.testing.assert_close(stream.rows, expected, rtol=1e-4, atol=1e-4)


def test_long_steps_read_gated_rows_in_parts(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, width = GatedStreamSpec(2, 8), 16
    residual, block = GatedResidual(spec, TritonRowGates(EPS)), gates_on(device, spec, width)
    results = []
    for most in (100, 4):
        monkeypatch.setattr(gated, "PRODUCT_TOKENS", most)
        stream = Stream(residual.begin(random(11, width, device=device)))
        read = residual.next_block(stream, (), block)
        ended = residual.finish(stream, (read,), block)
        results.append((read, stream.rows, ended))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)


def test_the_end_of_a_stream_weighs_its_rows(device: torch.device) -> None:
    spec, width = StreamSpec(4, 20, 1e-6, weighs_end=True), 64
    products, base, scale = (random(*shape, device=device) for shape in ((4, 4 * width), (4,), (1,)))
    end = Connection(FloatLinear(products[None] / 16), base, scale)
    pointwise = TorchPointwise(EPS, unrotated(0), device)
    residual = MixedResidual(spec, TritonStreamMixer(spec, EPS), pointwise, EPS)
    rows, norm = random(3, 4, width, device=device), random(width, device=device)
    found = residual.finish(Stream(rows.clone()), (), BlockInput(norm, end))
    flat = torch.nn.functional.rms_norm(rows.flatten(1), (4 * width,), eps=EPS)
    shares = (scale * (flat @ products.T / 16) + base).sigmoid() + 1e-6
    torch.testing.assert_close(found, pointwise.norm((shares[..., None] * rows).sum(1), norm), **CLOSE)
