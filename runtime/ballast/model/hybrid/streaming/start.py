"""Whether the experts of a long step are streamed through the device, and from how many tokens on, as measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.hybrid.streaming.break_even import Timing, break_even
from ballast.model.hybrid.streaming.host_memory import PinnedMemory, panels_of
from ballast.model.hybrid.streaming.streamed_experts import MakeExperts, StreamedExperts
from ballast.model.spec import ModelSpec

log = logging.getLogger(__name__)

NEVER = 0
"""As a number of tokens."""
_FEWEST_TOKENS = 64
_REPEATS = 2
_TIMED_CHUNKS = 20
_MOST_DIFFERENCE = 0.05
"""Of the largest result; activations that the CPU rounds to a byte come to a fifth of it."""


def start_streaming(
    spec: ModelSpec,
    layers: Sequence[kernels.Experts],
    pool: kernels.ThreadPool,
    pinned: PinnedMemory,
    device: torch.device,
    make_experts: MakeExperts,
    *,
    from_tokens: int | None,
    max_tokens: int,
    token_counts: Sequence[int],
) -> StreamedExperts | None:
    """The experts of all routed layers, streamed in steps of `from_tokens` to `max_tokens` tokens, and tried with those
    of `token_counts` that are as long. Where None is given it is measured; None is returned when no step is to be
    streamed. Copies of pageable memory hold up the host and are slow: they have to be asked for."""
    if from_tokens == NEVER or not layers:
        return None
    if from_tokens is None and not pinned.num_bytes:
        log.info("experts are not streamed", extra={"reason": "their memory is not pinned"})
        return None
    streamed = StreamedExperts([panels_of(layer) for layer in layers], make_experts, device)
    few = min(_FEWEST_TOKENS, max_tokens)
    tried = sorted({few, max_tokens, *(count for count in token_counts if count >= (from_tokens or few))})
    try:
        reason = why_wrong(spec, layers, pool, streamed, device, tried)
        if reason is not None:
            log.warning("experts are not streamed", extra={"reason": reason})
            return None
        if from_tokens is None:
            from_tokens = _measured(spec, layers, pool, streamed, device, max_tokens)
    finally:
        streamed.wait()  # no copy that is under way outlives its buffer
    if from_tokens is None or from_tokens > max_tokens:
        return None
    streamed.from_tokens = from_tokens
    return streamed


def _measured(
    spec: ModelSpec,
    layers: Sequence[kernels.Experts],
    pool: kernels.ThreadPool,
    streamed: StreamedExperts,
    device: torch.device,
    max_tokens: int,
) -> int | None:
    """Fewest tokens for which streaming pays; None: it never does."""
    timings = measure(spec, layers, pool, streamed, device, max_tokens)
    from_tokens = break_even(timings)
    last = timings[-1]
    log.info(
        "streamed experts measured",
        extra={
            "from_tokens": from_tokens or "never",
            "tokens": last.tokens,
            "cpu_ms_a_layer": round(last.cpu_s * 1e3, 2),
            "streamed_ms_a_layer": round(last.streamed_s * 1e3, 2),
            "gb_per_s": round(streamed.pass_bytes / len(layers) / last.streamed_s / 1e9, 1),
        },
    )
    return from_tokens


def why_wrong(
    spec: ModelSpec,
    layers: Sequence[kernels.Experts],
    pool: kernels.ThreadPool,
    streamed: StreamedExperts,
    device: torch.device,
    token_counts: Sequence[int],
) -> str | None:
    """Why streamed experts cannot be relied on: a kernel for one of the combinations of types cannot be compiled, for
    so many tokens each, or gives what the CPU does not for few of them. None when all is well. What CUDA itself reports
    is raised: there is no going on after that."""
    firsts: dict[tuple[int, ...], int] = {}
    for index, layer in enumerate(layers):
        firsts.setdefault(tuple(matrix.ggml_type for part in layer.parts for matrix in part), index)
    try:
        for num_tokens in token_counts:
            given = _Given(spec, num_tokens, device)
            streamed.begin(num_tokens)
            for index in range(max(firsts.values()) + 1):
                streamed.submit(index, *given.on_device)
                if index in firsts.values() and num_tokens <= _FEWEST_TOKENS:
                    wanted = given.by_cpu(layers[index], pool)
                    found = streamed.result(index).cpu().numpy()
                    difference = float(np.abs(found - wanted).max() / np.abs(wanted).max())
                    if not difference <= _MOST_DIFFERENCE:
                        return f"routed layer {index} differs from the CPU's by {difference:.2g} of the largest result"
            streamed.wait()
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001  compilers raise whatever they like, and the CPU can do without them
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def measure(
    spec: ModelSpec,
    layers: Sequence[kernels.Experts],
    pool: kernels.ThreadPool,
    streamed: StreamedExperts,
    device: torch.device,
    max_tokens: int,
) -> list[Timing]:
    """A layer by the CPU and streamed, for more and more tokens until streaming wins, at most `max_tokens`."""
    timings: list[Timing] = []
    num_tokens = min(_FEWEST_TOKENS, max_tokens)
    while True:
        timings.append(_timing(spec, layers, pool, streamed, device, num_tokens))
        if timings[-1].lead_s >= 0 or num_tokens == max_tokens:
            return timings
        num_tokens = min(2 * num_tokens, max_tokens)


def _timing(
    spec: ModelSpec,
    layers: Sequence[kernels.Experts],
    pool: kernels.ThreadPool,
    streamed: StreamedExperts,
    device: torch.device,
    num_tokens: int,
) -> Timing:
    given = _Given(spec, num_tokens, device)
    # So many that the first copy, during which nothing is computed, is a small part.
    num_layers = min(len(layers), -(-_TIMED_CHUNKS * len(layers) // streamed.num_chunks))
    cpu_s, streamed_s = [], []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        given.by_cpu(layers[0], pool)
        cpu_s.append(time.perf_counter() - begin)
        streamed.wait()
        begin = time.perf_counter()
        streamed.begin(num_tokens)
        for layer in range(num_layers):
            streamed.submit(layer, *given.on_device)
        streamed.finish(lambda: None)
        streamed_s.append((time.perf_counter() - begin) / num_layers)
    return Timing(num_tokens, min(cpu_s), min(streamed_s))


class _Given:
    """Random tokens that choose random experts."""

    def __init__(self, spec: ModelSpec, num_tokens: int, device: torch.device) -> None:
        rng = np.random.default_rng(num_tokens)
        chosen = rng.random((num_tokens, spec.num_experts)).argsort(1)[:, : spec.num_experts_used]
        self._x = rng.standard_normal((num_tokens, spec.hidden), dtype=np.float32)
        self._ids = np.ascontiguousarray(chosen, dtype=np.int32)
        self._weights = rng.random(self._ids.shape, dtype=np.float32)
        self.on_device = [torch.from_numpy(values).to(device) for values in (self._x, self._ids, self._weights)]

    def by_cpu(self, experts: kernels.Experts, pool: kernels.ThreadPool) -> NDArray[np.float32]:
        out = np.empty_like(self._x)
        experts.forward(pool, self._x, self._ids, self._weights, out)
        return out
