"""Whether the experts of a long step are streamed through the device, and from how many tokens on, as measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch

from ballast._core import kernels
from ballast.model.hybrid.break_even import Timing, break_even
from ballast.model.hybrid.host_memory import PinnedMemory, panels_of
from ballast.model.hybrid.streamed_experts import MakeExperts, StreamedExperts
from ballast.model.spec import ModelSpec

log = logging.getLogger(__name__)

NEVER = 0
"""As a number of tokens."""
_FEWEST_TOKENS = 64
_REPEATS = 2
_TIMED_CHUNKS = 20


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
) -> StreamedExperts | None:
    """The experts of all routed layers, streamed in steps of `from_tokens` to `max_tokens` tokens. Where None is given
    it is measured; None is returned when no step is to be streamed. Copies of pageable memory hold up the host and are
    slow: they have to be asked for."""
    if from_tokens == NEVER or not layers:
        return None
    if from_tokens is None and not pinned.num_bytes:
        log.info("experts are not streamed", extra={"reason": "their memory is not pinned"})
        return None
    streamed = StreamedExperts([panels_of(layer) for layer in layers], make_experts, device)
    if from_tokens is None:
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
    if from_tokens is None or from_tokens > max_tokens:
        return None
    streamed.from_tokens = from_tokens
    return streamed


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
    rng = np.random.default_rng(num_tokens)
    x = rng.standard_normal((num_tokens, spec.hidden), dtype=np.float32)
    chosen = rng.random((num_tokens, spec.num_experts)).argsort(1)[:, : spec.num_experts_used]
    ids = np.ascontiguousarray(chosen, dtype=np.int32)
    weights = rng.random(ids.shape, dtype=np.float32)
    out = np.empty_like(x)
    on_device = [torch.from_numpy(values).to(device) for values in (x, ids, weights)]
    # So many that the first copy, during which nothing is computed, is a small part.
    num_layers = min(len(layers), -(-_TIMED_CHUNKS * len(layers) // streamed.num_chunks))
    cpu_s, streamed_s = [], []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        layers[0].forward(pool, x, ids, weights, out)
        cpu_s.append(time.perf_counter() - begin)
        streamed.wait()
        begin = time.perf_counter()
        streamed.begin(num_tokens)
        for layer in range(num_layers):
            streamed.submit(layer, *on_device)
        streamed.finish(lambda: None)
        streamed_s.append((time.perf_counter() - begin) / num_layers)
    return Timing(num_tokens, min(cpu_s), min(streamed_s))
