"""Assembles the model, warms it up, and captures its decode steps."""

from __future__ import annotations

import logging

from ballast.model.hybrid.attention.device_kv_pool import DeviceKvPool
from ballast.model.hybrid.device import Device
from ballast.model.hybrid.experts.joint_experts import JointExperts
from ballast.model.hybrid.graphs.decode_inputs import DecodeInputs
from ballast.model.hybrid.load_stages.stage import Report
from ballast.model.hybrid.load_stages.state import LoadState
from ballast.model.hybrid.model import HybridModel, RoutedExperts
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.startup.layer_kinds import one_of_each_kind
from ballast.model.hybrid.startup.pcie_share import SHARES
from ballast.model.hybrid.streaming.host_memory import NOT_PINNED

log = logging.getLogger(__name__)


def allocate(state: LoadState, report: Report) -> None:
    """Allocate the KV cache and the input of decode steps."""
    options = state.options
    state.kv = DeviceKvPool(
        state.spec.planes,
        options.num_blocks,
        options.block_tokens,
        options.kv_dtype,
        state.device,
        options.num_window_blocks,
    )
    max_blocks = -(-state.num_positions // options.block_tokens)
    state.inputs = DecodeInputs(
        options.max_batch_size,
        max_blocks,
        state.spec.hidden,
        state.device,
        state.backend.small_copy,
        has_windows=options.num_window_blocks is not None,
    )


def assemble(state: LoadState, report: Report) -> None:
    """Assemble the model from its parts."""
    options, streamed, pcie_share = state.options, state.streamed, state.options.pcie_share
    joint = None
    if streamed is not None and streamed.joint_split is not None:
        joint = JointExperts(state.host, streamed, streamed.joint_split)
    routed = RoutedExperts(state.experts, streamed, joint, state.pinned, state.packing.pool)
    prefill_attention = state.make_prefill_attention(state.expanded)
    device = Device(
        platform=platform_of(state.device),
        layers=range(state.spec.num_layers),
        vram=options.vram,
        kv=state.kv,
        resident=state.by_layer,
        inputs=state.inputs,
        attention=state.attention,
        prefill_attention=prefill_attention,
        pointwise=state.pointwise,
        late=state.late,
    )
    state.model = HybridModel(state.spec, state.weights, routed, [device], options.max_step_tokens, state.off)
    with state.times.phase("kernels"):
        state.late.use_compiled(waits=not options.finishes_later)
    if state.late.waiting:
        log.info("other kernels compute prompts until these are compiled", extra={"kernels": state.late.waiting})
    if state.experts.can_share:
        state.experts.set_pcie_share(SHARES[0] if pcie_share is None else pcie_share)
    elif pcie_share != 0 and state.experts.has_host and not state.pinned.num_bytes:
        state.off.add("pcie_share", NOT_PINNED)


def warm_up(state: LoadState, report: Report) -> None:
    """Use every kernel once: first compile all kernels in parallel, then run them."""
    if not state.backend.compiles:
        return
    kinds = one_of_each_kind(state.gguf_model, state.spec, state.by_layer)
    with state.times.phase("kernels"):
        with state.backend.parallel_compile(report):
            state.model.warm_up(state.step_sizes, state.host.idle(), kinds)
        state.model.warm_up(state.step_sizes, state.host.idle(), kinds)
    state.backend.give_back_memory()  # blocks of all sizes, few of which a long step can use


def capture_graphs(state: LoadState, report: Report) -> None:
    """Capture decode steps as graphs."""
    if state.options.decodes_by_graphs and state.backend.captures_graphs:
        with state.times.phase("graphs"):
            state.model.capture_decode(report, finishes_later=state.options.finishes_later)
