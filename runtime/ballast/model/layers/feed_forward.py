"""Feed-forward networks: a dense one for every token, or routed experts with optional shared experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ballast.families.architecture import Gating, Unit
from ballast.model.layers.tensor import ExpertPart, Group, PartOf, Tensor, bias, matrix, vector

MLP = "mlp"
"""The role of a network for every token: a dense layer's, or the shared experts."""
MLP_GATE = "mlp_gate"
"""The role of the gate of shared experts."""
EXPERT_TABLE = "expert_table"
"""The role of a table of the experts of each token's id."""
EXPERTS = "experts"
"""The role of routed experts."""
ROUTER_BIAS = "exp_probs_b.bias"
"""The usual name of a router's bias in files."""


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """The rule that selects and weights experts."""

    num_experts: int
    num_experts_used: int
    gating: Gating
    num_groups: int
    num_groups_used: int
    group_score: Literal["max", "top2_sum"]
    router_bias: bool
    """Whether each expert has a bias that affects the selection but not the weight."""
    normalize_weights: bool
    weights_scale: float


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """A gated network for every token."""

    width: int
    unit: Unit | None = None
    """What it computes of gate and up. None: silu(g) · u."""

    def modules(self, moe_module: str) -> dict[str, tuple[str, ...]]:
        """Modules without tensors of their own, with their classes."""
        return {"mlp": ("{family}MLP",)}

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        return _network("", self.width, hidden, "mlp", "dense feed-forward", self.unit)


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """Routed experts, and shared experts for every token."""

    routing: RoutingSpec
    width: int
    """Width of each expert."""
    num_shared: int
    is_fused: bool
    """Whether each expert's gate and up projection are in one tensor, gate first."""
    router_bias_name: str = ROUTER_BIAS
    """How the file names the router's bias, if there is one."""
    unit: Unit | None = None
    """What an expert computes of gate and up. None: silu(g) · u."""
    shared_unit: Unit | None = None
    """What the shared experts compute of gate and up. None: silu(g) · u."""
    gates_shared: bool = False
    """Whether what the shared experts give is multiplied by the sigmoid of a product with the layer's input."""
    has_biases: bool = False
    """Whether the router's logits and the three products of each expert have biases."""
    table_rows: int = 0
    """Token ids whose experts a table gives, which the router then only weighs; 0: the router selects them."""

    @property
    def shared_width(self) -> int:
        return self.width * self.num_shared

    def modules(self, moe_module: str) -> dict[str, tuple[str, ...]]:
        """Modules without tensors of their own, with their classes. `moe_module`: the family's, without prefix."""
        shared = {"mlp.shared_experts": ("{family}MLP",)} if self.num_shared else {}
        return {"mlp": (f"{{family}}{moe_module}",), **shared}

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        count = self.routing.num_experts
        router: dict[str, Any] = {"group": "router", "classes": ("MoEGate", "{family}TopkRouter")}
        added = Tensor("router_bias", self.router_bias_name, (count,), module="mlp.gate", is_added=True, **router)
        shared = _network("_shexp", self.shared_width, hidden, "mlp.shared_experts", "shared experts", self.shared_unit)
        return (
            matrix("router", "ffn_gate_inp", (count, hidden), "mlp.gate", is_exact=True, **router),
            *((added,) if self.routing.router_bias and not self.table_rows else ()),
            *((self._table(),) if self.table_rows else ()),
            *((bias("router_logit_bias", "ffn_gate_inp", count, "mlp.gate", **router),) if self.has_biases else ()),
            *self._experts(hidden),
            *(self._expert_biases(hidden) if self.has_biases else ()),
            *(shared if self.num_shared else ()),
            *((self._shared_gate(hidden),) if self.num_shared and self.gates_shared else ()),
        )

    def _table(self) -> Tensor:
        shape, classes = (self.table_rows, self.routing.num_experts_used), ("{family}HashRouter",)
        return matrix(
            EXPERT_TABLE,
            "ffn_gate_tid2eid",
            shape,
            "mlp.gate",
            group="router",
            classes=classes,
            is_flat=True,
            limits=range(self.routing.num_experts),
        )

    def _shared_gate(self, hidden: int) -> Tensor:
        module = "mlp.shared_expert_gate"
        return vector(MLP_GATE, "ffn_gate_inp_shexp", hidden, module, group="shared experts", may_be_short=True)

    def _experts(self, hidden: int) -> tuple[Tensor, ...]:
        count, width = self.routing.num_experts, self.width
        down = self._part("down", (count, hidden, width))
        if self.is_fused:
            return (self._part("gate_up", (count, 2 * width, hidden)), down)
        return (self._part("gate", (count, width, hidden)), self._part("up", (count, width, hidden)), down)

    def num_biases(self, hidden: int) -> int:
        """Numbers in the biases of the routed experts."""
        return self.routing.num_experts * (2 * self.width + hidden) if self.has_biases else 0

    def _expert_biases(self, hidden: int) -> tuple[Tensor, ...]:
        """Of each matrix of the experts."""
        return tuple(
            replace(
                matrix,
                role=f"{matrix.role}_bias",
                name=f"{matrix.name.removesuffix('.weight')}.bias",
                shape=matrix.shape[:-1],
                is_added=True,
            )
            for matrix in self._experts(hidden)
        )

    def _part(self, part: Literal["gate", "up", "gate_up", "down"], shape: tuple[int, ...]) -> Tensor:
        return matrix(
            f"experts_{part}",
            f"ffn_{part}_exps",
            shape,
            "mlp.experts",
            group="routed experts",
            classes=("ModuleList", "{family}Experts"),
            part_of=PartOf(EXPERTS, ("gate", "up") if part == "gate_up" else (part,), self.unit),
        )


FeedForward = DenseSpec | ExpertsSpec


def _network(suffix: str, width: int, hidden: int, module: str, group: Group, unit: Unit | None) -> tuple[Tensor, ...]:
    """A network for every token, packed as a single expert."""
    shapes: dict[ExpertPart, tuple[int, int]] = {
        "gate": (width, hidden),
        "up": (width, hidden),
        "down": (hidden, width),
    }
    return tuple(
        matrix(
            part,
            f"ffn_{part}{suffix}",
            shape,
            f"{module}.{part}_proj",
            group=group,
            part_of=PartOf(MLP, (part,), unit),
        )
        for part, shape in shapes.items()
    )
