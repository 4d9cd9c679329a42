"""Checks and times streamed experts against the CPU, when a model is loaded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.errors import EngineDeadError, first_line
from ballast.model.hybrid.agreement import MAX_DIFFERENCE, RandomTokens, difference
from ballast.model.hybrid.faults.device_errors import DEVICE_ERRORS
from ballast.model.hybrid.streaming.break_even import Timing
from ballast.model.hybrid.streaming.joint_split import JointTiming, balanced_fraction, expert_counts
from ballast.model.hybrid.streaming.streamed_layers import StreamedLayers
from ballast.model.spec import ModelSpec

MIN_TOKENS = 64
JOINT_TOKENS = (64, 128, 256, 512, 1024)
"""Numbers of tokens for which both processors are timed together. More gain little: on 16 cores with AMX, a layer of
gpt-oss-120b took 31 ms streamed and 30 ms with both for 2048 tokens, and far longer with both for 4096."""
_JOINT_LAYERS = 2
_REPEATS = 2
_TIMED_CHUNKS = 20
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Calibration:
    """The experts of all routed layers, computed both ways for random tokens that select random experts."""

    spec: ModelSpec
    layers: Sequence[kernels.Experts]
    pool: kernels.ThreadPool
    streamed: StreamedLayers

    def why_wrong(self, warmup_sizes: Sequence[int]) -> str | None:
        """The reason why streamed experts are unreliable, or None.

        Computes one layer of each device and combination of types for each of `warmup_sizes` tokens, and compares
        results of few tokens with the CPU's. Of a layer that one device computes, many tokens use only the experts that
        are copied first. Raises the errors that CUDA itself reports, and EngineDeadError when a device hangs."""
        firsts = self._first_layers()
        all_experts, few = [0] * len(self.layers), [0] * len(self.layers)
        for index in firsts:
            bounds = self.streamed.bounds(index)
            all_experts[index] = bounds[-1]
            few[index] = bounds[-1] if len(self.streamed.devices_of(index)) > 1 else bounds[0]
        try:
            for num_tokens in warmup_sizes:
                given = _Given(self.spec, num_tokens)
                is_compared = num_tokens <= MIN_TOKENS
                counts = all_experts if is_compared else few
                self.streamed.begin_first(counts)
                for index in firsts:
                    found = self._result(index, given, below=counts[index])
                    if is_compared:
                        expected = given.by_cpu(self.layers[index], self.pool)
                        by = difference(found.cpu().numpy(), expected)
                        if not by <= MAX_DIFFERENCE:
                            return f"routed layer {index} differs from the CPU's by {by:.2g} of the largest result"
                self.streamed.wait()
        except (EngineDeadError, *DEVICE_ERRORS):
            raise
        except Exception as error:  # noqa: BLE001  compilers raise errors of any type, and the CPU can replace them
            return first_line(error)
        return None

    def _first_layers(self) -> list[int]:
        """The first layer that each device computes, with others or alone, for each combination of types."""
        firsts: dict[tuple[torch.device, tuple[int, ...]], int] = {}
        for index, layer in enumerate(self.layers):
            types = tuple(matrix.ggml_type for part in layer.parts for matrix in part)
            for device in self.streamed.devices_of(index):
                firsts.setdefault((device, types), index)
        return sorted(set(firsts.values()))

    def timings(self, max_tokens: int) -> list[Timing]:
        """Times a layer on the CPU and streamed, for increasing numbers of tokens until streaming wins, at most
        `max_tokens`."""
        timings: list[Timing] = []
        num_tokens = min(MIN_TOKENS, max_tokens)
        while True:
            timings.append(self._timing(num_tokens))
            if timings[-1].lead_s >= 0 or num_tokens == max_tokens:
                return timings
            num_tokens = min(2 * num_tokens, max_tokens)

    def joint_timings(self, alone: Sequence[Timing], max_tokens: int) -> list[JointTiming]:
        """Timings of a layer on the CPU, streamed, and on both together, for JOINT_TOKENS up to `max_tokens`. Sizes in
        `alone` are not measured again. Both together are measured twice if they are slower than each alone, because
        something else, such as a compiler, may have taken the time."""
        known = {timing.tokens: timing for timing in alone}
        timings: list[JointTiming] = []
        for num_tokens in sorted({min(size, max_tokens) for size in JOINT_TOKENS}):
            timing = known.get(num_tokens) or self._timing(num_tokens, 1)
            fraction = balanced_fraction(timing)
            joint_s = self._joint_s(num_tokens, fraction)
            if joint_s > max(timing.cpu_s, timing.streamed_s):
                joint_s = min(joint_s, self._joint_s(num_tokens, fraction))
            timings.append(JointTiming(num_tokens, timing.cpu_s, timing.streamed_s, fraction, joint_s))
        return timings

    def _joint_s(self, num_tokens: int, fraction: float) -> float:
        """Seconds of a layer if this fraction of its experts is streamed while the CPU computes the others."""
        given = _Given(self.spec, num_tokens)
        bounds = [self.streamed.bounds(layer) for layer in range(min(_JOINT_LAYERS, len(self.layers)))]
        self._send(given, len(bounds))
        counts = expert_counts(bounds, fraction)
        self.streamed.wait()
        begin = time.perf_counter()
        self.streamed.begin_first([*counts, *[0] * (len(self.layers) - len(counts))])
        for layer, count in enumerate(counts):
            if count > 0:
                self._result(layer, given, below=count)
            given.by_cpu(self.layers[layer], self.pool, first=count)
            self.streamed.finish(lambda: None)
        return (time.perf_counter() - begin) / len(counts)

    def _timing(self, num_tokens: int, repeats: int = _REPEATS) -> Timing:
        given = _Given(self.spec, num_tokens)
        # Enough layers that the first copy, during which nothing is computed, takes a small fraction of the time.
        num_layers = min(len(self.layers), -(-_TIMED_CHUNKS * len(self.layers) // self.streamed.num_chunks))
        self._send(given, num_layers)
        cpu_s, streamed_s = [], []
        for _ in range(repeats):
            begin = time.perf_counter()
            given.by_cpu(self.layers[0], self.pool)
            cpu_s.append(time.perf_counter() - begin)
            self.streamed.wait()
            begin = time.perf_counter()
            self.streamed.begin(num_tokens)
            for layer in range(num_layers):
                self._result(layer, given)
            self.streamed.finish(lambda: None)
            streamed_s.append((time.perf_counter() - begin) / num_layers)
        return Timing(num_tokens, min(cpu_s), min(streamed_s))

    def _send(self, given: _Given, num_layers: int) -> None:
        """Copy the tokens to the owners of the first layers and make the CPU's, so that neither is timed."""
        given.on(_CPU)
        for layer in range(num_layers):
            given.on(self.streamed.platform(layer).device)

    def _result(self, layer: int, given: _Given, below: int | None = None) -> torch.Tensor:
        """Queue a layer; returns its result on its owner. `below`: only with experts below this; None: with all."""
        platform = self.streamed.platform(layer)
        with platform.active():
            x, ids, weights = given.on(platform.device)
            self.streamed.submit(layer, x, ids if below is None else ids.masked_fill(ids >= below, -1), weights)
            return self.streamed.result(layer)


class _Given:
    """Random tokens that select random experts."""

    def __init__(self, spec: ModelSpec, num_tokens: int) -> None:
        experts = np.arange(spec.routing.num_experts)
        self._tokens = RandomTokens.draw(num_tokens, spec.hidden, experts, spec.routing.num_experts_used)
        self._on: dict[torch.device, list[torch.Tensor]] = {}

    def on(self, device: torch.device) -> list[torch.Tensor]:
        """The tokens, ids and weights on a device, always the same tensors."""
        if device not in self._on:
            self._on[device] = self._tokens.on(device)
        return self._on[device]

    def by_cpu(self, experts: kernels.Experts, pool: kernels.ThreadPool, first: int = 0) -> NDArray[np.float32]:
        """The result of experts `first` and above."""
        x, ids, weights = (values.numpy() for values in self.on(_CPU))
        out = np.empty_like(x)
        experts.forward(pool, x, np.where(ids < first, np.int32(-1), ids), weights, out)
        return out
