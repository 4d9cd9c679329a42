"""Routed experts: divides them between the device and the CPU, sets up streaming, and measures the PCIe share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ballast._core.kernels import Experts, ThreadPool
from ballast.host.startup.start_times import StartTimes
from ballast.model.hybrid.backend import Backend
from ballast.model.hybrid.experts.device_layers import place_experts
from ballast.model.hybrid.experts.divided_experts import DividedExperts, LayerOnDevice
from ballast.model.hybrid.experts.self_check import checked
from ballast.model.hybrid.handoff.host_experts import HostExperts
from ballast.model.hybrid.load_stages.stage import Report
from ballast.model.hybrid.load_stages.state import LoadState
from ballast.model.hybrid.startup.pcie_share import MAX_TOKENS, kept_share, layers_to_measure, measured_share
from ballast.model.hybrid.streaming.start import start_streaming
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """Implements `TryOut`: computes layers on the device and on the CPU."""

    times: StartTimes
    pool: ThreadPool
    spec: ModelSpec
    num_tokens: Sequence[int]
    backend: Backend
    off: SwitchedOff

    def __call__(self, layers: Sequence[LayerOnDevice], experts: Sequence[Experts]) -> list[LayerOnDevice]:
        """See `TryOut`."""
        compiled_first = partial(self.backend.parallel_compile, lambda _: None)
        with self.times.phase("kernels"):
            return checked(
                layers, experts, self.pool, self.spec, self.num_tokens, self.backend.device, compiled_first, self.off
            )


def self_check(state: LoadState) -> SelfCheck:
    """Makes a check that does not refer to the state, because the state refers to the users of the check."""
    return SelfCheck(state.times, state.packing.pool, state.spec, state.expert_sizes, state.backend, state.off)


def divide_experts(state: LoadState, report: Report) -> None:
    """Divide each layer's experts between the CPU and the device."""
    options, device = state.options, state.device
    is_readable = options.pcie_share != 0 and state.backend.reads_host(state.pinned)
    placed = [
        place_experts(layer, state.whole.left_of(index), state.backend.make_experts, device, is_readable=is_readable)
        for index, layer in state.in_host.items()
    ]
    right = self_check(state)(placed, state.on_host)
    state.by_layer = state.whole.placed | dict(zip(state.in_host, right, strict=True))
    state.host = HostExperts(
        state.spec,
        state.on_host,
        state.packing.pool,
        options.max_step_tokens,
        state.backend.hand_off(),
        pin_thread=options.pin_thread,
    )
    state.experts = DividedExperts(
        state.host, [state.by_layer[index] for index in sorted(state.by_layer)], state.backend.divide, device
    )


def stream_experts(state: LoadState, report: Report) -> None:
    """Decide whether long steps stream the experts through the device."""
    options = state.options
    state.streamed = start_streaming(
        state.spec,
        state.on_host,
        state.packing.pool,
        state.pinned,
        state.device,
        state.backend.make_sums,
        from_tokens=options.stream_from_tokens,
        max_tokens=options.max_step_tokens,
        warmup_sizes=state.expert_sizes,
        off=state.off,
        joint=options.joint_split,
        record=options.start,
    )


def measure_share(state: LoadState, report: Report) -> None:
    """Measure the fraction of a decode step's experts that the device should read over PCIe, unless an option sets
    it."""
    options, experts = state.options, state.experts
    if not experts.can_share or options.pcie_share is not None:
        return
    measured = layers_to_measure(sorted(state.in_host))

    def best_share() -> float:
        in_these = [state.in_host[index] for index in measured]
        few_host = HostExperts(
            state.spec,
            in_these,
            state.packing.pool,
            MAX_TOKENS,
            state.backend.hand_off(),
            pin_thread=options.pin_thread,
        )
        few = DividedExperts(
            few_host, [state.by_layer[index] for index in measured], state.backend.divide, state.device
        )
        these = [state.routed_weights[index] for index in measured]
        return measured_share(
            few, these, state.spec.hidden, options.max_batch_size, state.device, state.backend.replay_of
        )

    with state.times.phase("measured"):
        share = state.measurements.take("pcie_share", state.pinned.num_bytes, best_share, float, kept_share)
    experts.set_pcie_share(share)
