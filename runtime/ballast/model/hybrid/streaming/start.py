"""Decides, when a model is loaded, whether long steps stream experts through the device, and from how many tokens
on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ballast._core import kernels
from ballast.host.startup.measurements import Measurements
from ballast.host.startup.start import Start
from ballast.model.hybrid.copies.exchange_sizes import exchange_bytes
from ballast.model.hybrid.streaming.break_even import Timing, break_even
from ballast.model.hybrid.streaming.calibration import MIN_TOKENS, Calibration
from ballast.model.hybrid.streaming.host_memory import NOT_PINNED, HostExpertPart, PinnedMemory, panels_of
from ballast.model.hybrid.streaming.joint_split import JointSplit, JointTiming, joint_split
from ballast.model.hybrid.streaming.kept_timings import (
    dump_timings,
    load_joint_timings,
    load_speeds,
    load_timings,
)
from ballast.model.hybrid.streaming.link_shares import relative_speeds
from ballast.model.hybrid.streaming.link_speed import measured_speeds
from ballast.model.hybrid.streaming.streamed_layers import StreamedLayers, StreamingDevice
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff

log = logging.getLogger(__name__)

NEVER = 0
"""The value of `from_tokens` that turns streaming off."""


def start_streaming(
    spec: ModelSpec,
    layers: Sequence[kernels.Experts],
    pool: kernels.ThreadPool,
    pinned: PinnedMemory,
    devices: Sequence[StreamingDevice],
    *,
    from_tokens: int | None,
    max_tokens: int,
    warmup_sizes: Sequence[int],
    off: SwitchedOff,
    joint: JointSplit | None = None,
    record: Start | None = None,
) -> StreamedLayers | None:
    """The experts of all routed layers, for streaming in steps of `from_tokens` to `max_tokens` tokens. None if no step
    is streamed; `off` gets the reason if streaming was requested and is not possible. `devices`: in the order of their
    layers, which together are `layers`; each streams experts of all layers.

    `from_tokens` None: measured. Then the experts must be pinned, because copies of pageable memory are slow and block
    the host. The streamed experts are checked with those of `warmup_sizes` that are long enough. `joint`: how joint
    steps divide the experts; None: measured on a GPU with fast copies, no joint steps elsewhere. `record` gets the
    times and the measurements, and may contain those of an earlier start."""
    if from_tokens == NEVER or not layers:
        return None
    if from_tokens is None and not pinned.num_bytes:
        off.add("streamed_experts", NOT_PINNED)
        return None
    record = record or Start()
    parts = [panels_of(layer) for layer in layers]
    with record.times.phase("measured"):
        speeds = _relative_speeds(devices, parts, pinned, record.measurements)
    try:
        streamed = StreamedLayers(parts, devices, speeds, exchange_bytes=exchange_bytes(spec, max_tokens))
    except MemoryError as error:
        off.add("streamed_experts", f"devices cannot exchange activations through host memory: {error}")
        return None
    taken = _Taken(record.measurements, max_tokens, [pinned.num_bytes, *speeds[1:]])
    calibration = Calibration(spec, layers, pool, streamed)
    few = min(MIN_TOKENS, max_tokens)
    # Joint steps are shorter than fully streamed steps.
    tried = sorted({few, max_tokens, *(count for count in warmup_sizes if count >= min(from_tokens or few, few))})
    try:
        if not _is_right(calibration, tried, off, record):
            return None
        timings: list[Timing] = []
        is_measured = from_tokens is None
        if is_measured:
            with record.times.phase("measured"):
                timings, from_tokens = _measured(calibration, taken)
        if from_tokens is None or from_tokens > max_tokens:
            return None
        if joint is None and streamed.copies_concurrently and pinned.num_bytes:
            with record.times.phase("measured"):
                joint = _measured_joint(calibration, timings, taken)
    finally:
        streamed.wait()  # all copies must end before their buffers are freed
    if is_measured and joint is not None:  # up to here both processors together are faster than the device alone
        from_tokens = min(max(from_tokens, joint.to_tokens + 1), max_tokens)
    streamed.from_tokens, streamed.joint_split = from_tokens, joint
    return streamed


def _is_right(calibration: Calibration, tried: Sequence[int], off: SwitchedOff, record: Start) -> bool:
    """Whether streamed experts of steps of `tried` tokens are right; `off` gets the reason if not."""
    with record.times.phase("kernels"):
        reason = calibration.why_wrong(tried)
    if reason is not None:
        off.add("streamed_experts", reason)
    return reason is None


def _relative_speeds(
    devices: Sequence[StreamingDevice],
    layers: Sequence[Sequence[HostExpertPart]],
    pinned: PinnedMemory,
    measurements: Measurements,
) -> list[float]:
    """The speeds of the devices' links, relative to the fastest; equal for a single device, and if copies block the
    host, because the memory is not pinned."""
    if len(devices) == 1 or not pinned.num_bytes:
        return [1.0] * len(devices)
    return measurements.take(
        "link_speeds",
        [pinned.num_bytes],
        lambda: relative_speeds(measured_speeds([each.device for each in devices], layers)),
        list,
        lambda kept: load_speeds(kept, len(devices)),
    )


@dataclass(frozen=True, slots=True)
class _Taken:
    """Reads timings from the measurements of an earlier start, or measures and stores them."""

    measurements: Measurements
    max_tokens: int
    inputs: list[float]
    """What else the timings depend on: pinned bytes, and the speeds of further devices' links."""

    def timings(self, calibration: Calibration) -> list[Timing]:
        return self.measurements.take(
            "streamed_experts",
            [self.max_tokens, *self.inputs],
            lambda: calibration.timings(self.max_tokens),
            dump_timings,
            lambda kept: load_timings(kept, self.max_tokens),
        )

    def joint_timings(self, calibration: Calibration, alone: Sequence[Timing]) -> list[JointTiming]:
        return self.measurements.take(
            "joint_steps",
            [self.max_tokens, *self.inputs],
            lambda: calibration.joint_timings(alone, self.max_tokens),
            dump_timings,
            lambda kept: load_joint_timings(kept, self.max_tokens),
        )


def _measured(calibration: Calibration, taken: _Taken) -> tuple[list[Timing], int | None]:
    """The timings, and the smallest number of tokens for which streaming pays; None if it never does."""
    timings = taken.timings(calibration)
    from_tokens = break_even(timings)
    last = timings[-1]
    log.info(
        "streamed experts measured",
        extra={
            "from_tokens": from_tokens or "never",
            "tokens": last.tokens,
            "cpu_ms_a_layer": round(last.cpu_s * 1e3, 2),
            "streamed_ms_a_layer": round(last.streamed_s * 1e3, 2),
            "gb_per_s": round(calibration.streamed.pass_bytes / len(calibration.layers) / last.streamed_s / 1e9, 1),
        },
    )
    return timings, from_tokens


def _measured_joint(calibration: Calibration, alone: Sequence[Timing], taken: _Taken) -> JointSplit | None:
    """The split of joint steps; None if they never pay."""
    timings = taken.joint_timings(calibration, alone)
    split = joint_split(timings)
    log.info(
        "joint steps measured",
        extra={
            "from_tokens": "never" if split is None else split.from_tokens,
            "to_tokens": "never" if split is None else split.to_tokens,
            "tokens": [timing.tokens for timing in timings],
            "streamed_fraction": [round(timing.fraction, 2) for timing in timings],
            "cpu_ms_per_layer": [round(timing.cpu_s * 1e3, 2) for timing in timings],
            "streamed_ms_per_layer": [round(timing.streamed_s * 1e3, 2) for timing in timings],
            "joint_ms_per_layer": [round(timing.joint_s * 1e3, 2) for timing in timings],
        },
    )
    return split
