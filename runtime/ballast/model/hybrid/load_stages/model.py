"""Assembles the model, warms it up, and captures its decode steps."""

from __future__ import annotations

import logging

from ballast.model.hybrid.attention.device_kv_pool import DeviceKvPool
from ballast.model.hybrid.devices.device import Device
from ballast.model.hybrid.experts.joint_experts import JointExperts
from ballast.model.hybrid.graphs.decode_inputs import DecodeInputs
from ballast.model.hybrid.layers.ngram_embedding import NgramEmbedding
from ballast.model.hybrid.load_stages.stage import Report
from ballast.model.hybrid.load_stages.state import DeviceState, LoadState
from ballast.model.hybrid.model import HybridModel, RoutedExperts
from ballast.model.hybrid.recurrent.state_pool import DeviceStatePool
from ballast.model.hybrid.startup.layer_kinds import one_of_each_kind
from ballast.model.hybrid.startup.pcie_share import SHARES
from ballast.model.hybrid.streaming.host_memory import NOT_PINNED

log = logging.getLogger(__name__)


def allocate(state: LoadState, report: Report) -> None:
    """Allocate the KV cache, the recurrent states and the input of decode steps."""
    options = state.options
    max_blocks = -(-state.num_positions // options.block_tokens)

    def allocate_on(device: DeviceState) -> None:
        on, planes = device.backend.device, [state.spec.planes[layer] for layer in device.layers]
        device.kv = DeviceKvPool(
            planes, options.num_blocks, options.block_tokens, options.kv_dtype, on, options.num_window_blocks
        )
        layers = [state.spec.layers[layer] for layer in device.layers]
        device.states = DeviceStatePool(layers, state.spec.hidden, options.num_state_slots, on)
        device.inputs = DecodeInputs(
            options.max_batch_size,
            max_blocks,
            state.spec.hidden,
            on,
            device.backend.small_copy,
            num_rows=1 if state.spec.stream is None else state.spec.stream.num_rows,
            has_windows=options.num_window_blocks is not None,
            has_states=state.spec.state_bytes > 0,
            ngram_width=next((layer.ngram.width for layer in layers if layer.ngram is not None), 0),
            has_ids=state.spec.looks_up_experts(device.layers),
        )

    state.on_each(allocate_on)


def assemble(state: LoadState, report: Report) -> None:
    """Assemble the model from its parts."""
    options, streamed, pcie_share = state.options, state.streamed, state.options.pcie_share
    joint = None
    if streamed is not None and streamed.joint_split is not None:
        joint = JointExperts(state.host, streamed, streamed.joint_split)
    routed = RoutedExperts(state.experts, streamed, joint, state.pinned, state.packing.pool)
    state.on_each(_assemble_device)
    devices = [device.loaded for device in state.devices]
    state.model = HybridModel(state.spec, state.weights, routed, devices, options.max_step_tokens, state.off)
    with state.times.phase("kernels"):
        state.on_each(lambda device: device.late.use_compiled(waits=not options.finishes_later))
    if waiting := state.waiting_kernels:
        log.info("other kernels compute prompts until these are compiled", extra={"kernels": waiting})
    if state.experts.can_share:
        state.experts.set_pcie_share(SHARES[0] if pcie_share is None else pcie_share)
    elif pcie_share != 0 and state.experts.has_host and not state.pinned.num_bytes:
        state.off.add("pcie_share", NOT_PINNED)


def _assemble_device(device: DeviceState) -> None:
    device.loaded = Device(
        platform=device.platform,
        layers=device.layers,
        vram=device.options.vram,
        kv=device.kv,
        states=device.states,
        experts=device.experts,
        inputs=device.inputs,
        attention=device.attention,
        prefill_attention=device.make_prefill_attention(device.expanded),
        pointwise=device.pointwise,
        residual=device.residual,
        embed_ngrams=NgramEmbedding(device.gates.norm, device.backend.convolve),
        late=device.late,
    )


def warm_up(state: LoadState, report: Report) -> None:
    """Use every kernel once: first compile all kernels in parallel, then run them."""
    if not all(device.backend.compiles for device in state.devices):
        return
    kinds: list[int] = []

    def compile_kinds(device: DeviceState) -> None:
        own = one_of_each_kind(state.gguf_model, state.spec, device.by_layer, device.layers)
        with device.backend.parallel_compile(report):
            state.model.warm_up(state.step_sizes, state.host.idle(), own)
        kinds.extend(own)

    with state.times.phase("kernels"):
        state.on_each(compile_kinds)
        state.model.warm_up(state.step_sizes, state.host.idle(), kinds)
    # Blocks of all sizes, few of which a long step can use.
    state.on_each(lambda device: device.backend.give_back_memory())


def capture_graphs(state: LoadState, report: Report) -> None:
    """Capture decode steps as graphs."""
    if state.options.decodes_by_graphs and all(device.backend.captures_graphs for device in state.devices):
        with state.times.phase("graphs"):
            state.model.capture_decode(report, finishes_later=state.options.finishes_later)
