"""Counters of a model that also computes on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from ballast.metric import Counter, Gauge
from ballast.model.switched_off import Feature


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """Totals since the model was loaded, and current values. The names are part of `/debug/state`."""

    expert_bytes_over_pcie: Annotated[
        int,
        Counter("expert_weight_bytes_over_pcie", "Bytes of experts' weights that a GPU has read from host memory."),
    ] = 0
    streamed_steps: Annotated[
        int, Counter("streamed_steps", "Steps whose experts were all streamed through a GPU.")
    ] = 0
    decode_graphs: Annotated[int, Gauge("decode_graphs", "Batch sizes that a GPU decodes by a captured graph.")] = 0
    gpu_experts: Annotated[int, Gauge("resident_experts", "Routed experts in a GPU's memory, over all layers.")] = 0
    pcie_share: Annotated[
        float,
        Gauge("pcie_share_ratio", "Of a decode step's experts in host memory, those that a GPU reads across PCIe."),
    ] = 0.0
    saturated_numbers: Annotated[
        int,
        Counter(
            "saturated_numbers",
            "Numbers too large for a GPU's cache or its attention, taken as the largest that they hold.",
        ),
    ] = 0
    switched_off: Mapping[Feature, str] = field(default_factory=dict)
    """Ways of computing on the GPU that the model does without, and why."""
