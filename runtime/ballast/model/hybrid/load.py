"""Loads a hybrid model from a checked model file onto its devices."""

from __future__ import annotations

from collections.abc import Callable

from ballast.model.hybrid.backends.selection import backend_of
from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
from ballast.model.hybrid.load_options import HybridOptions
from ballast.model.hybrid.load_stages import attention, divided_attention, experts, model, weights
from ballast.model.hybrid.load_stages.stage import Stage, run_stages
from ballast.model.hybrid.load_stages.state import LoadState
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.weights import HybridWeights
from ballast.model.packed_tensors import Packing
from ballast.model.spec import ModelSpec
from ballast.weights.gguf import GgufModel

STAGES = (
    Stage("attention kernels", attention.choose_kernels, 0.0),
    Stage("weights", weights.load_weights, 0.93),
    Stage("dense products", weights.tune_products, 0.93),
    Stage("attention layers", attention.make_layers, 0.93),
    Stage("division of experts", experts.divide_experts, 0.93),
    Stage("memory of steps", model.allocate, 0.93),
    Stage("streaming of experts", experts.stream_experts, 0.93),
    Stage("model", model.assemble, 0.93),
    Stage("warm-up", model.warm_up, 0.98),
    Stage("division of attention", divided_attention.divide_attention, 0.98),
    Stage("PCIe share", experts.measure_share, 0.98),
    Stage("decode graphs", model.capture_graphs, 1.0),
)
"""The order matters: a stage uses the results of earlier stages, and no compiler may use the CPUs while a stage
measures times."""


def load_hybrid_model(
    gguf_model: GgufModel,
    spec: ModelSpec,
    packing: Packing,
    options: HybridOptions,
    report: Callable[[float], None] = lambda _: None,
    ahead: PinnedAhead | None = None,
) -> tuple[HybridModel, HybridWeights]:
    """Load the model, on the thread that will run it; `report` gets the fraction done, 0…1. `ahead`: memory that is
    pinned in the meantime. The load waits for it before any timing, and releases it if pinning of experts is refused.

    Raises ModelError for latents that the GPU does not support, EngineDeadError if a product or a capture fails, and
    the errors that CUDA itself reports."""
    with options.start.times.phase("kernels"):
        # The first is made last: a backend binds the calling thread to its device.
        backends = [backend_of(each.device) for each in reversed(options.devices)][::-1]
    state = LoadState(gguf_model, spec, packing, options, backends, ahead)
    run_stages(STAGES, state, report)
    report(1.0)
    options.start.missing.extend([*state.waiting_kernels, *state.off.reasons])
    state.model.start = options.start
    return state.model, state.weights
