"""Divides attention of long prompts among the devices of a model, after the warm-up: kernels that are compiled in
parallel belong to one device."""

from __future__ import annotations

import itertools
import logging
from functools import partial

import torch

from ballast.host.startup.measurements import kept_seconds
from ballast.model.hybrid.attention.attention import multiplied_type
from ballast.model.hybrid.attention.divided_heads import DividedHeads, HeadsDevice
from ballast.model.hybrid.attention.division_gain import division_pays
from ballast.model.hybrid.copies.device_sender import DeviceSender
from ballast.model.hybrid.copies.peer_speed import peer_gigabyte_s
from ballast.model.hybrid.faults.device_errors import computing_on
from ballast.model.hybrid.faults.kernel_check import why_unusable
from ballast.model.hybrid.load_stages.stage import Report
from ballast.model.hybrid.load_stages.state import LoadState

log = logging.getLogger(__name__)


def divide_attention(state: LoadState, report: Report) -> None:
    """Divide the heads of long prompts, if attention expands keys on all devices, all reach each other, and their
    results agree. Devices that hold all experts compute different parts of a prompt instead."""
    if state.overlaps:
        return
    sizes, platforms = state.expanded_sizes, [device.platform for device in state.devices]
    pairs = itertools.permutations(platforms, 2)
    if sizes is None or len(platforms) == 1 or not all(one.reaches(other.device) for one, other in pairs):
        return
    names, members = [platform.device for platform in platforms], []
    for device in state.devices:
        if device.expanded is None:
            return
        sender = DeviceSender(device.platform, device.backend.small_copy, names, 0)
        active = partial(computing_on, device.platform, device.options.vram)
        members.append(HeadsDevice(device.platform.device, active, sender, device.expanded))
    gigabyte_s = _peer_gigabyte_s(state, members)
    pays = partial(division_pays, sizes, gigabyte_s)
    divided = [DividedHeads(own, [each for each in members if each is not own], pays) for own in members]
    for own, heads in zip(members, divided, strict=True):
        reason = _why_wrong(own, heads, multiplied_type(state.options.kv_dtype))
        if reason is not None:
            state.off.add("divided_attention", reason)
            return
    speed = round(1 / gigabyte_s, 1) if gigabyte_s else None
    log.info("attention of long prompts is divided", extra={"devices": list(map(str, names)), "gb_per_s": speed})
    for device, own, heads in zip(state.devices, members, divided, strict=True):
        device.heads = own
        device.loaded.prefill_attention = device.make_prefill_attention(heads)


def _why_wrong(own: HeadsDevice, heads: DividedHeads, dtype: torch.dtype) -> str | None:
    """See `DividedHeads.why_wrong`; also if the kernels do not compile. Raises the errors that CUDA itself reports."""

    def check() -> str | None:
        with own.active():
            return heads.why_wrong(dtype)

    return why_unusable(check)


def _peer_gigabyte_s(state: LoadState, members: list[HeadsDevice]) -> float:
    """See `peer_gigabyte_s`; 0 if the devices' memory is the host's."""
    platforms = [device.platform for device in state.devices]
    if not all(platform.pins for platform in platforms):
        return 0.0
    senders = [(platform, member.sender) for platform, member in zip(platforms, members, strict=True)]
    with state.times.phase("measured"):
        return state.measurements.take(
            "peer_copies", [len(platforms)], partial(peer_gigabyte_s, senders), float, kept_seconds
        )
