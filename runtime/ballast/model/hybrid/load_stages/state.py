"""The state of loading: the inputs, and the results of the stages so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ballast._core import kernels
from ballast.model.hybrid.attention.device_kv_pool import DeviceKvPool
from ballast.model.hybrid.attention.expanded import ExpandedAttention, ExpandedSizes
from ballast.model.hybrid.attention.sizes import Sizes
from ballast.model.hybrid.backend import Backend, LateAttention
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
from ballast.model.hybrid.device_mixers import device_mixers
from ballast.model.hybrid.experts.device_layers import WholeLayers
from ballast.model.hybrid.experts.divided_experts import DividedExperts, LayerOnDevice
from ballast.model.hybrid.graphs.decode_inputs import DecodeInputs
from ballast.model.hybrid.handoff.host_experts import HostExperts
from ballast.model.hybrid.layers.attention_layers import AttentionLayers
from ballast.model.hybrid.linear import Linear
from ballast.model.hybrid.load_options import HybridOptions
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.streaming.host_memory import PinnedMemory
from ballast.model.hybrid.streaming.streamed_experts import StreamedExperts
from ballast.model.hybrid.weights import HybridWeights, RoutedWeights
from ballast.model.packed_tensors import Packing
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff
from ballast.weights.gguf import GgufModel


class LoadState:
    """One load of a model. Each stage reads attributes that earlier stages have set, and sets its own. An attribute
    without a value here belongs to the stage in its group's heading."""

    def __init__(
        self,
        gguf_model: GgufModel,
        spec: ModelSpec,
        packing: Packing,
        options: HybridOptions,
        backend: Backend,
        ahead: PinnedAhead | None,
    ) -> None:
        self.gguf_model = gguf_model
        self.spec = spec
        self.packing = packing
        self.options = options
        self.ahead = ahead
        """Memory that is pinned in the meantime."""
        self.backend = backend
        self.device = options.device
        self.times = options.start.times
        self.measurements = options.start.measurements
        self.off = SwitchedOff()
        of_layers = device_mixers(spec)
        assert of_layers is not None, "the plan rejects these kinds of attention"
        self.layer_mixers = of_layers
        """The mixer of each layer."""
        self.mixers = tuple(dict.fromkeys(of_layers))
        """The different mixers."""
        self.num_positions = min(spec.context_length, options.num_blocks * options.block_tokens)
        """Maximum positions of a request."""

    # --- attention kernels ---
    sizes: Sequence[Sizes]
    """By mixer."""
    expanded_sizes: ExpandedSizes | None
    attends: Sequence[Sequence[Any]]
    """Attention by lane and mixer, with kernels that need no compilation in advance."""
    late_attention: Sequence[LateAttention | None]
    """By mixer."""
    expert_sizes: list[int]
    """Numbers of tokens for which the kernels of experts are checked."""
    step_sizes: list[int]
    """Numbers of tokens of the warm-up steps."""

    # --- weights ---
    weights: HybridWeights
    linears: list[Linear]
    """All dense layers."""
    whole: WholeLayers
    pinned: PinnedMemory
    routed_weights: list[RoutedWeights]
    in_host: dict[int, kernels.Experts]
    """The experts in host memory, by index of the routed layer."""

    # --- attention layers ---
    pointwise: Pointwise
    late: LateKernels
    attention: AttentionLayers
    make_prefill_attention: Callable[[ExpandedAttention | None], AttentionLayers]
    expanded: ExpandedAttention | None

    # --- experts ---
    by_layer: Mapping[int, LayerOnDevice]
    """The experts that the device computes, by routed layer."""
    host: HostExperts
    experts: DividedExperts

    # --- memory ---
    kv: DeviceKvPool
    inputs: DecodeInputs

    # --- streaming ---
    streamed: StreamedExperts | None

    # --- model ---
    model: HybridModel

    @property
    def on_host(self) -> list[kernels.Experts]:
        """The experts in host memory, in order of layers."""
        return list(self.in_host.values())
