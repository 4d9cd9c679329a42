"""The state of loading: the inputs, and the results of the stages so far, for the model and for each of its devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ballast._core import kernels
from ballast.model.hybrid.attention.device_kv_pool import DeviceKvPool
from ballast.model.hybrid.attention.divided_heads import DividedHeads, HeadsDevice
from ballast.model.hybrid.attention.expanded import ExpandedAttention, ExpandedSizes
from ballast.model.hybrid.backends.backend import Backend, LateAttention
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.compressed.compression import Compression
from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
from ballast.model.hybrid.device_mixers import device_mixers
from ballast.model.hybrid.devices.device import Device
from ballast.model.hybrid.experts.device_layers import WholeLayers
from ballast.model.hybrid.experts.divided_experts import DeviceExperts, DividedExperts
from ballast.model.hybrid.experts.layer_on_device import LayerOnDevice
from ballast.model.hybrid.faults.device_errors import computing_on
from ballast.model.hybrid.graphs.decode_inputs import DecodeInputs
from ballast.model.hybrid.handoff.host_experts import HostExperts
from ballast.model.hybrid.layers.attention_layers import AttentionLayers
from ballast.model.hybrid.linear import Linear
from ballast.model.hybrid.load_options import DeviceOptions, HybridOptions
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.recurrent.recurrence import Recurrence
from ballast.model.hybrid.recurrent.state_pool import DeviceStatePool
from ballast.model.hybrid.residual.gated import RowGates
from ballast.model.hybrid.residual.residual import Residual
from ballast.model.hybrid.streaming.host_memory import PinnedMemory
from ballast.model.hybrid.streaming.streamed_layers import StreamedLayers
from ballast.model.hybrid.weights import HybridWeights, RoutedWeights
from ballast.model.layer_ranges import check_ranges
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.layer import DeviceAttention, RecurrentMixer
from ballast.model.packed_tensors import Packing
from ballast.model.spec import ModelSpec
from ballast.model.switched_off import SwitchedOff
from ballast.weights.gguf import GgufModel


class DeviceState:
    """What has been loaded for one device. As in `LoadState`, an attribute without a value here belongs to the stage in
    its group's heading."""

    def __init__(self, options: DeviceOptions, backend: Backend, spec: ModelSpec) -> None:
        self.options = options
        self.backend = backend
        self.platform = platform_of(options.device)
        self.layers = options.layers
        self.routed = [index for index, layer in enumerate(spec.routed_layers) if layer in options.layers]
        """The indices, among the model's routed layers, of those that this device computes."""

    def active(self) -> AbstractContextManager[None]:
        """A context in which this device computes; see `computing_on`."""
        return computing_on(self.platform, self.options.vram)

    @property
    def by_layer(self) -> dict[int, LayerOnDevice]:
        """The experts that the device computes, by index among the model's routed layers."""
        return dict(zip(self.routed, self.experts.layers, strict=True))

    # --- attention kernels ---
    attends: Sequence[Sequence[Any]]
    """Attention by lane and mixer of attention, with kernels that need no compilation in advance."""
    late_attention: Sequence[LateAttention | None]
    """By mixer of attention."""
    recurrences: Mapping[RecurrentMixer, Recurrence]
    compressions: Mapping[CompressedSpec, Compression]

    # --- weights ---
    linears: list[Linear]
    """All dense layers."""
    whole: WholeLayers

    # --- attention layers ---
    pointwise: Pointwise
    residual: Residual
    gates: RowGates
    """Of streams of several rows."""
    late: LateKernels
    attention: AttentionLayers
    make_prefill_attention: Callable[[ExpandedAttention | DividedHeads | None], AttentionLayers]
    expanded: ExpandedAttention | None
    """Replaced when faster kernels are compiled."""
    heads: HeadsDevice | None = None
    """The device's part of divided attention, if any."""

    # --- experts ---
    experts: DeviceExperts

    # --- memory ---
    kv: DeviceKvPool
    states: DeviceStatePool
    inputs: DecodeInputs

    # --- model ---
    loaded: Device


class LoadState:
    """One load of a model. Each stage reads attributes that earlier stages have set, and sets its own. An attribute
    without a value here belongs to the stage in its group's heading."""

    def __init__(
        self,
        gguf_model: GgufModel,
        spec: ModelSpec,
        packing: Packing,
        options: HybridOptions,
        backends: Sequence[Backend],
        ahead: PinnedAhead | None,
    ) -> None:
        """`backends`: those of the options' devices. Raises ValueError as `check_ranges` does."""
        check_ranges(spec, [each.layers for each in options.devices])
        self.gguf_model = gguf_model
        self.spec = spec
        self.packing = packing
        self.options = options
        self.ahead = ahead
        """Memory that is pinned in the meantime."""
        self.devices = [DeviceState(*each, spec) for each in zip(options.devices, backends, strict=True)]
        """In the order of their layers."""
        self.times = options.start.times
        self.measurements = options.start.measurements
        self.off = SwitchedOff()
        of_layers = device_mixers(spec)
        assert of_layers is not None, "the plan rejects these kinds of layers"
        self.layer_mixers = of_layers
        """The mixer of each layer, attention or recurrent."""
        self.mixers = tuple(dict.fromkeys(each for each in of_layers if isinstance(each, DeviceAttention)))
        """The different mixers whose attention reads the paged cache token by token."""
        self.compressed = tuple(dict.fromkeys(each for each in of_layers if isinstance(each, CompressedSpec)))
        """The different mixers that read compressed entries."""
        self.num_positions = min(spec.context_length, options.num_blocks * options.block_tokens)
        """Maximum positions of a request."""

    def name_of(self, measurement: str, device: DeviceState) -> str:
        """The name of a measurement of one device."""
        return measurement if len(self.devices) == 1 else f"{measurement} of {device.backend.device}"

    def on_each(self, run: Callable[[DeviceState], None]) -> None:
        """Call `run` for each device in order, while it is active."""
        for device in self.devices:
            with device.active():
                run(device)

    # --- attention kernels ---
    expanded_sizes: ExpandedSizes | None
    expert_sizes: list[int]
    """Numbers of tokens for which the kernels of experts are checked."""
    step_sizes: list[int]
    """Numbers of tokens of the warm-up steps."""

    # --- weights ---
    weights: HybridWeights
    pinned: PinnedMemory
    routed_weights: list[RoutedWeights]
    in_host: dict[int, kernels.Experts]
    """The experts in host memory, by index of the routed layer."""

    # --- experts ---
    host: HostExperts
    experts: DividedExperts

    # --- streaming ---
    streamed: StreamedLayers | None

    # --- model ---
    model: HybridModel

    @property
    def waiting_kernels(self) -> list[str]:
        """Names of the kernels that are not in use yet."""
        return list(dict.fromkeys(name for device in self.devices for name in device.late.waiting))

    @property
    def overlaps(self) -> bool:
        """Whether devices compute different parts of a prompt at the same time, because they hold all experts."""
        return len(self.devices) > 1 and not self.in_host

    @property
    def on_host(self) -> list[kernels.Experts]:
        """The experts in host memory, in order of layers."""
        return list(self.in_host.values())
