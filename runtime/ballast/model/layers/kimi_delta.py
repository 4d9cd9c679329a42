"""Kimi Delta Attention: linear attention whose cache is a state of fixed size, each row of which has its own decay."""

from __future__ import annotations

from dataclasses import dataclass

from ballast.model.layers.plane import Plane, State
from ballast.model.layers.tensor import Tensor, bias, matrix, norm


@dataclass(frozen=True, slots=True)
class KimiDeltaSpec:
    """Kimi Delta Attention (arXiv 2510.26692): Gated DeltaNet with a decay for each row of a head's state. Queries,
    keys and values pass a short convolution each."""

    num_heads: int
    """Of queries, keys and values."""
    head_dim: int
    """Width of a head's query, key and value, and the rank of the products that give decays and gates."""
    conv_taps: int
    """Tokens that a convolution sees, its own the last."""
    lower_bound: float = 0.0
    """Below 0: the logarithm of a decay is the bound times a sigmoid; 0: minus a softplus, without a bound."""

    @property
    def width(self) -> int:
        """Numbers of a token's queries; its keys and values have as many."""
        return self.num_heads * self.head_dim

    @property
    def planes(self) -> tuple[Plane, ...]:
        """It keeps nothing of single tokens."""
        return ()

    @property
    def states(self) -> tuple[State, ...]:
        """What the layer keeps of a sequence."""
        inputs = (self.conv_taps - 1) * self.width
        return (
            State("recurrent", self.width * self.head_dim),
            *(State(f"convolution of {name}", inputs) for name in ("queries", "keys", "values")),
        )

    @property
    def modules(self) -> dict[str, tuple[str, ...]]:
        """Modules without tensors of their own, with their classes."""
        return {"self_attn": ("{family}DeltaAttention",)}

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        module, own = "self_attn", self.modules["self_attn"]
        rate = Tensor("rate", "ssm_a", (self.num_heads,), "attention", module, own, has_ones=True, limits="decay")
        return (
            *(tensor for each in ("query", "key", "value") for tensor in self._branch(each, hidden)),
            matrix("beta", "ssm_beta", (self.num_heads, hidden), f"{module}.b_proj"),
            matrix("decay_down", "ssm_f_a", (self.head_dim, hidden), f"{module}.f_a_proj"),
            matrix("decay_up", "ssm_f_b", (self.width, self.head_dim), f"{module}.f_b_proj"),
            rate,
            bias("rate_shift", "ssm_dt", self.width, module, classes=own),
            matrix("gate_down", "ssm_g_a", (self.head_dim, hidden), f"{module}.g_a_proj"),
            matrix("gate_up", "ssm_g_b", (self.width, self.head_dim), f"{module}.g_b_proj"),
            norm("head_norm", "ssm_norm", self.head_dim, f"{module}.o_norm", classes=("{family}RMSNormGated",)),
            matrix("output", "attn_output", (hidden, self.width), f"{module}.o_proj"),
        )

    def _branch(self, name: str, hidden: int) -> tuple[Tensor, ...]:
        """Of queries, keys or values."""
        letter, module = name[0], f"self_attn.{name[0]}"
        return (
            matrix(name, f"attn_{letter}", (self.width, hidden), f"{module}_proj"),
            matrix(
                f"{name}_conv",
                f"ssm_conv1d_{letter}",
                (self.width, self.conv_taps),
                f"{module}_conv1d",
                is_exact=True,
                is_flat=True,
                has_ones=True,
            ),
        )
