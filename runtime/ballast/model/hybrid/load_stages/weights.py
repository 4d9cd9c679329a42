"""Loads the weights, pins the experts in host memory, and tunes the products of the dense layers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

import torch

from ballast._core.kernels import Experts, Matrix
from ballast.model.hybrid.attention.device_kv_pool import largest_number
from ballast.model.hybrid.experts.device_layers import WholeLayers
from ballast.model.hybrid.experts.division import MAX_SHARED_TOKENS
from ballast.model.hybrid.linear import Linear, MakeLinear
from ballast.model.hybrid.load_options import HybridOptions
from ballast.model.hybrid.load_stages.experts import self_check
from ballast.model.hybrid.load_stages.stage import Report
from ballast.model.hybrid.load_stages.state import DeviceState, LoadState
from ballast.model.hybrid.streaming.host_memory import PinnedMemory, Pinning
from ballast.model.hybrid.streaming.start import NEVER
from ballast.model.hybrid.weights import DeviceLoader, HybridWeights, load_hybrid_weights

log = logging.getLogger(__name__)

_LOADED = 0.9 / 0.93
"""Fraction of this stage's progress at which the weights are loaded; the rest is the pinning of experts."""


def load_weights(state: LoadState, report: Report) -> None:
    """Load all weights. In the meantime, pin loaded experts in host memory and compile kernels."""
    state.pinned = PinnedMemory()
    with ExitStack() as stack:
        # Memory that one device has pinned is pinned for all.
        pinning = stack.enter_context(state.devices[0].backend.pinning(state.ahead))
        loaders: list[DeviceLoader] = []
        for device in state.devices:
            loaders += [_loader(state, device, pinning, stack)] * len(device.layers)
        with state.times.phase("weights"):
            state.weights = load_hybrid_weights(
                state.gguf_model,
                state.spec,
                state.options.num_sampled_ids,
                state.packing,
                loaders,
                lambda done: report(_LOADED * done),
            )
        if pinning is not None:
            with state.times.phase("pinned"):
                state.pinned = pinning.finish(lambda done: report(_LOADED + (1 - _LOADED) * done))
    _report_bounds(state.weights, state.options.kv_dtype)


def _loader(state: LoadState, device: DeviceState, pinning: Pinning | None, stack: ExitStack) -> DeviceLoader:
    """Makes the weights of a device's layers. Kernels for them are compiled until `stack` is closed."""
    options, backend = state.options, device.backend
    device.whole = WholeLayers(
        options.gpu_experts, backend.make_experts, backend.device, self_check(state, device.backend)
    )
    device.linears = []
    with device.active():
        most_expert_tokens = _most_expert_tokens(options)
        early = stack.enter_context(
            backend.early_kernels(state.spec, state.packing.pool, options.max_step_tokens, most_expert_tokens)
        )

    def note(linear: Linear) -> None:
        device.linears.append(linear)
        if early is not None:
            early.add_linear(linear)

    def is_taken(index: int, experts: Experts) -> bool:
        is_on_device = device.whole.take(index, experts)
        if not is_on_device:
            if pinning is not None:
                pinning.add(experts)
            if early is not None and most_expert_tokens:
                early.add_experts(experts)
        return is_on_device

    make_linear = _noted(backend.make_linear, note)
    return DeviceLoader(backend.device, make_linear, backend.router, is_taken, device.active)


def _most_expert_tokens(options: HybridOptions) -> int:
    """Maximum tokens of a step in which a device streams experts or reads them from host memory; 0: in no step."""
    if options.stream_from_tokens != NEVER:
        return options.max_step_tokens
    return min(MAX_SHARED_TOKENS, options.max_step_tokens) if options.pcie_share != 0 else 0


def tune_products(state: LoadState, report: Report) -> None:
    """Choose the kernel of each dense layer for each number of tokens."""

    def tune(device: DeviceState) -> None:
        if device.backend.compiles:
            with state.times.phase("kernels"):
                most_tokens = state.options.max_step_tokens
                name = state.name_of("dense_products", device)
                device.backend.autotune(device.linears, most_tokens, state.off, state.measurements, name)

    state.on_each(tune)
    state.routed_weights = [layer.routed for layer in state.weights.layers if layer.routed is not None]
    state.in_host = {
        index: layer.experts for index, layer in enumerate(state.routed_weights) if layer.experts is not None
    }


def _report_bounds(weights: HybridWeights, kv_dtype: torch.dtype) -> None:
    """Log whether the cache can hold the numbers of all possible tokens. If not, larger numbers are clamped and
    counted."""
    holds = largest_number(kv_dtype)
    is_safe = all(largest <= holds for largest in weights.largest.values())
    kept = "s and ".join(weights.largest)
    log.log(
        logging.INFO if is_safe else logging.WARNING,
        f"the cache holds all {kept}s" if is_safe else f"the cache may have to clamp {kept}s",
        extra={**{f"largest_{name}": largest for name, largest in weights.largest.items()}, "holds": holds},
    )


def _noted(make_linear: MakeLinear, note: Callable[[Linear], None]) -> MakeLinear:
    """Wraps `make_linear`: `note` receives every layer that is made."""

    def make(matrix: Matrix, rows: int, cols: int, *, is_transposed: bool = False) -> Linear:
        linear = make_linear(matrix, rows, cols, is_transposed=is_transposed)
        note(linear)
        return linear

    return make
