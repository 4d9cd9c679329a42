"""Routed experts: divides them between devices and the CPU, sets up streaming, and measures the PCIe share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ballast._core.kernels import Experts, ThreadPool
from ballast.host.startup.start_times import StartTimes
from ballast.model.hybrid.backends.backend import Backend
from ballast.model.hybrid.experts.device_layers import place_experts
from ballast.model.hybrid.experts.divided_experts import DeviceExperts, DividedExperts
from ballast.model.hybrid.experts.expert_cache import ExpertCache
from ballast.model.hybrid.experts.layer_on_device import LayerOnDevice
from ballast.model.hybrid.experts.self_check import checked
from ballast.model.hybrid.faults.device_errors import computing_on
from ballast.model.hybrid.handoff.host_experts import HostExperts
from ballast.model.hybrid.load_stages.stage import Report
from ballast.model.hybrid.load_stages.state import DeviceState, LoadState
from ballast.model.hybrid.startup.pcie_share import MAX_TOKENS, kept_share, layers_to_measure, measured_share
from ballast.model.hybrid.streaming.host_memory import NOT_PINNED
from ballast.model.hybrid.streaming.start import start_streaming
from ballast.model.hybrid.streaming.streamed_layers import StreamingDevice
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff
from ballast.moe.expert_heat import ExpertHeat, heat_of_uses


@dataclass(frozen=True, slots=True)
class DeviceSelfCheck:
    """Implements `TryOut`: computes layers on the device and on the CPU."""

    times: StartTimes
    pool: ThreadPool
    spec: ModelSpec
    num_tokens: Sequence[int]
    backend: Backend
    off: SwitchedOff

    def __call__(self, layers: Sequence[LayerOnDevice], experts: Sequence[Experts]) -> list[LayerOnDevice]:
        """See `TryOut`."""
        own = self.backend
        with self.times.phase("kernels"):
            return checked(
                layers, experts, self.pool, self.spec, self.num_tokens, own.device, own.parallel_compile, self.off
            )


def self_check(state: LoadState, backend: Backend) -> DeviceSelfCheck:
    """Makes a check that does not refer to the state, because the state refers to the users of the check."""
    return DeviceSelfCheck(state.times, state.packing.pool, state.spec, state.expert_sizes, backend, state.off)


def divide_experts(state: LoadState, report: Report) -> None:
    """Divide each layer's experts between the CPU and the layer's device."""
    state.on_each(lambda device: _place(state, device))
    state.host = _host_experts(state, state.on_host, state.options.max_step_tokens)
    state.experts = DividedExperts(state.host, [device.experts for device in state.devices])


def _place(state: LoadState, device: DeviceState) -> None:
    """Copy experts of the device's layers to its memory, and check that it computes them correctly."""
    backend = device.backend
    is_readable = state.options.pcie_share != 0 and backend.reads_host(state.pinned)
    in_host = {index: state.in_host[index] for index in device.routed if index in state.in_host}
    placed = [
        place_experts(layer, device.whole.left_of(index), backend.make_experts, backend.device, is_readable=is_readable)
        for index, layer in in_host.items()
    ]
    right = self_check(state, backend)(placed, list(in_host.values()))
    by_layer = device.whole.placed | dict(zip(in_host, right, strict=True))
    layers = [by_layer[index] for index in device.routed]
    cache = _cache(state, device, layers)
    device.experts = DeviceExperts(layers if cache is None else cache.layers, backend.divide, backend.device, cache)


def _cache(state: LoadState, device: DeviceState, layers: Sequence[LayerOnDevice]) -> ExpertCache | None:
    """What moves the device's experts; None if they stay, or if copies from host memory would block the host."""
    options, routing = state.options, state.spec.routing
    if not options.updates_gpu_experts or all(layer.resident is None for layer in layers):
        return None
    if device.platform.pins and not state.pinned.num_bytes:
        state.off.add("gpu_experts_update", NOT_PINNED)
        return None
    heat = np.zeros((len(layers), routing.num_experts))
    if options.expert_uses is not None:
        heat = heat_of_uses(options.expert_uses[device.routed], routing.num_experts_used)
    own = ExpertHeat(heat, routing.num_experts_used)
    return ExpertCache(layers, own, device.backend.small_copy, device.backend.device)


def _host_experts(state: LoadState, layers: Sequence[Experts], max_tokens: int) -> HostExperts:
    hand_off = state.devices[0].backend.hand_off()  # it is the same for all devices of a kind
    return HostExperts(
        state.spec, layers, state.packing.pool, max_tokens, hand_off, pin_thread=state.options.pin_thread
    )


def stream_experts(state: LoadState, report: Report) -> None:
    """Decide whether long steps stream the experts through the devices."""
    options = state.options
    streaming = [
        StreamingDevice(
            device.backend.device,
            device.backend.make_sums,
            device.backend.small_copy,
            sum(index in state.in_host for index in device.routed),
            partial(computing_on, device.platform, device.options.vram),
        )
        for device in state.devices
    ]
    state.streamed = start_streaming(
        state.spec,
        state.on_host,
        state.packing.pool,
        state.pinned,
        streaming,
        from_tokens=options.stream_from_tokens,
        max_tokens=options.max_step_tokens,
        warmup_sizes=state.expert_sizes,
        off=state.off,
        joint=options.joint_split,
        record=options.start,
    )
    if state.streamed is not None and any(device.experts.num_gpu_experts for device in state.devices):
        state.streamed.skip(
            [
                partial(device.experts.resident, index)
                for device in state.devices
                for index, layer in enumerate(device.routed)
                if layer in state.in_host
            ]
        )


def measure_share(state: LoadState, report: Report) -> None:
    """Measure the fraction of a decode step's experts that each device should read over its link, unless an option sets
    it."""
    if not state.experts.can_share or state.options.pcie_share is not None:
        return
    state.experts.set_pcie_shares([_share_of(state, device) for device in state.devices])


def _share_of(state: LoadState, device: DeviceState) -> float:
    """The best fraction of a device; 0 if it cannot read experts."""
    if not device.experts.can_share:
        return 0.0
    options = state.options
    measured = layers_to_measure([index for index in device.routed if index in state.in_host])

    def best_share() -> float:
        backend, placed = device.backend, device.by_layer
        few_host = _host_experts(state, [state.in_host[index] for index in measured], MAX_TOKENS)
        few_placed = DeviceExperts([placed[index] for index in measured], backend.divide, backend.device)
        few = DividedExperts(few_host, [few_placed])
        these = [state.routed_weights[index] for index in measured]
        return measured_share(few, these, state.spec.hidden, options.max_batch_size, backend.device, backend.replay_of)

    with state.times.phase("measured"), device.active():
        name, inputs = state.name_of("pcie_share", device), state.pinned.num_bytes
        return state.measurements.take(name, inputs, best_share, float, kept_share)
