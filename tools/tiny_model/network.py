"""The model in torch, for training: a DeepSeek-V3 whose parameters have the names and shapes of GGUF tensors.

Every expert is computed for every token and weighted by the router, most with 0. At this size one large product is
faster than sorting tokens by expert.
Source of the arithmetic: DeepSeek-V2 (arXiv 2405.04434) for latent attention, V3 (arXiv 2412.19437) for the routing.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ballast.tiny.shape import TinyShape
from tools.tiny_model.shape import LONGEST


class Weight(nn.Module):
    """One tensor under the name `weight`."""

    def __init__(self, *dims: int, std: float = 0.0, mean: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*dims) * std + mean)


def matrix(rows: int, cols: int, gain: float = 1.0) -> Weight:
    """Keeps a vector's variance times gain²."""
    return Weight(rows, cols, std=gain / math.sqrt(cols))


def norm(size: int) -> Weight:
    return Weight(size, mean=1.0)


class SelectionBias(nn.Module):
    """Added to the scores only to choose experts. The load adjusts it, not a gradient."""

    bias: Tensor

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(num_experts))


class Block(nn.Module):
    """One layer."""

    def __init__(self, shape: TinyShape, layer: int) -> None:
        super().__init__()
        assert shape.q_lora_rank is not None
        self.shape, self.dense = shape, layer < shape.num_dense_layers
        hidden, heads, latent = shape.hidden, shape.num_heads, shape.kv_lora_rank
        residual = 1 / math.sqrt(2 * shape.num_layers)
        self.attn_norm = norm(hidden)
        self.attn_q_a = matrix(shape.q_lora_rank, hidden)
        self.attn_q_a_norm = norm(shape.q_lora_rank)
        self.attn_q_b = matrix(heads * (shape.nope_dim + shape.rope_dim), shape.q_lora_rank)
        self.attn_kv_a_mqa = matrix(latent + shape.rope_dim, hidden)
        self.attn_kv_a_norm = norm(latent)
        self.attn_kv_b = matrix(heads * (shape.nope_dim + shape.v_dim), latent)
        self.attn_output = matrix(hidden, heads * shape.v_dim, residual)
        self.ffn_norm = norm(hidden)
        if self.dense:
            self.ffn_gate, self.ffn_up = matrix(shape.ffn_dim, hidden), matrix(shape.ffn_dim, hidden)
            self.ffn_down = matrix(hidden, shape.ffn_dim, residual)
            return
        count, width = shape.num_experts, shape.expert_dim
        shared = shape.num_shared_experts * width
        self.ffn_gate_inp = matrix(count, hidden)
        self.exp_probs_b = SelectionBias(count)
        self.ffn_gate_exps = Weight(count, width, hidden, std=1 / math.sqrt(hidden))
        self.ffn_up_exps = Weight(count, width, hidden, std=1 / math.sqrt(hidden))
        self.ffn_down_exps = Weight(count, hidden, width, std=residual / shape.weights_scale / math.sqrt(width))
        self.ffn_gate_shexp, self.ffn_up_shexp = matrix(shared, hidden), matrix(shared, hidden)
        self.ffn_down_shexp = matrix(hidden, shared, residual)

    def forward(self, x: Tensor, weights: dict[str, Tensor], angles: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """x [tokens, hidden], float32 → the same after this layer, and each expert's number of tokens."""
        dtype = weights["attn_q_a"].dtype
        x = x + self.attention(rms(x, self.attn_norm, self.shape).to(dtype), weights, angles, starts)
        h = rms(x, self.ffn_norm, self.shape).to(dtype)
        if self.dense:
            return x + gated(h, weights["ffn_gate"], weights["ffn_up"], weights["ffn_down"]), h.new_zeros(0)
        routed, load = self.experts(h, weights)
        shared = gated(h, weights["ffn_gate_shexp"], weights["ffn_up_shexp"], weights["ffn_down_shexp"])
        return x + routed + shared, load

    def attention(self, x: Tensor, weights: dict[str, Tensor], angles: Tensor, starts: Tensor) -> Tensor:
        """Latent attention, its heads unfolded. angles [tokens, rope/2]; starts as `within_documents` has them."""
        shape = self.shape
        nope, rope, heads = shape.nope_dim, shape.rope_dim, shape.num_heads
        q = F.linear(rms(F.linear(x, weights["attn_q_a"]), self.attn_q_a_norm, shape), weights["attn_q_b"])
        q_nope, q_rope = q.unflatten(-1, (heads, nope + rope)).split([nope, rope], -1)
        latent, k_rope = F.linear(x, weights["attn_kv_a_mqa"]).split([shape.kv_lora_rank, rope], -1)
        kv = F.linear(rms(latent, self.attn_kv_a_norm, shape), weights["attn_kv_b"])
        k_nope, v = kv.unflatten(-1, (heads, nope + shape.v_dim)).split([nope, shape.v_dim], -1)
        k_rope = rotate(k_rope[:, None], angles).expand(-1, heads, -1)
        q = torch.cat([q_nope, rotate(q_rope, angles)], -1)
        k = torch.cat([k_nope, k_rope], -1)
        # Fused attention needs keys and values of the same width.
        v = F.pad(v, (0, nope + rope - shape.v_dim))
        out = within_documents(q, k, v, starts)[..., : shape.v_dim]
        return F.linear(out.flatten(-2), weights["attn_output"])

    def experts(self, x: Tensor, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The weighted sum of the chosen experts."""
        shape = self.shape
        count, per_group = shape.num_experts, shape.num_experts // shape.num_groups
        scores = torch.sigmoid(F.linear(x.float(), self.ffn_gate_inp.weight))
        biased = (scores + self.exp_probs_b.bias).detach()
        in_groups = biased.unflatten(-1, (shape.num_groups, per_group))
        best = in_groups.topk(min(2, per_group), dim=-1).values.sum(-1).topk(shape.num_groups_used, dim=-1).indices
        closed = torch.ones_like(in_groups[..., 0], dtype=torch.bool).scatter(-1, best, value=False)
        biased = in_groups.masked_fill(closed[..., None], -torch.inf).flatten(-2)
        chosen = biased.topk(shape.num_experts_used, dim=-1).indices
        share = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
        share = share / (share.sum(-1, keepdim=True) + 1e-20) * shape.weights_scale
        gate = F.linear(x, weights["ffn_gate_exps"].flatten(0, 1))
        up = F.linear(x, weights["ffn_up_exps"].flatten(0, 1))
        inner = (F.silu(gate) * up).unflatten(-1, (count, -1)) * share[..., None].to(x.dtype)
        out = F.linear(inner.flatten(-2), weights["ffn_down_exps"].transpose(0, 1).flatten(1))
        return out, torch.zeros_like(scores).scatter(-1, chosen, 1.0).sum(0)


class Network(nn.Module):
    """The whole model. `num_rows`: rows of embedding and output."""

    def __init__(self, shape: TinyShape, num_rows: int) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = Weight(num_rows, shape.hidden, std=0.05)
        self.blk = nn.ModuleList(Block(shape, layer) for layer in range(shape.num_layers))
        self.output_norm = norm(shape.hidden)
        self.output = matrix(num_rows, shape.hidden, 0.5)
        exponents = torch.arange(0, shape.rope_dim, 2) / shape.rope_dim
        self.frequencies: Tensor
        self.register_buffer("frequencies", shape.rope_theta**-exponents, persistent=False)

    def forward(
        self, ids: Tensor, positions: Tensor, starts: Tensor, weights: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """ids, positions [tokens]; starts as `within_documents` has them.

        `weights` are the matrices by GGUF name, as `matrices` gives them. Returns the last layer's normed state
        [tokens, hidden] and the load of every layer's experts.
        """
        angles = positions[:, None].float() * self.frequencies
        x = F.embedding(ids, weights["token_embd.weight"]).float()
        loads = []
        for layer, block in enumerate(self.blk):
            prefix = f"blk.{layer}."
            own = {
                name.removeprefix(prefix).removesuffix(".weight"): value
                for name, value in weights.items()
                if name.startswith(prefix)
            }
            x, load = block(x, own, angles, starts)
            if load.numel():
                loads.append(load)
        return rms(x, self.output_norm, self.shape), torch.stack(loads)

    def matrices(self) -> dict[str, Tensor]:
        """Every parameter that a file may quantise, by its GGUF name."""
        return {name: value for name, value in self.named_parameters() if value.ndim > 1 and "ffn_gate_inp" not in name}

    def balance(self, loads: Tensor, step: Tensor) -> None:
        """Makes experts with less than their share of tokens more likely, and others less likely (V3, section
        2.1.2)."""
        moe = [block for block in self.blk if not block.dense]
        for block, load in zip(moe, loads, strict=True):
            assert isinstance(block, Block)
            block.exp_probs_b.bias += step * torch.sign(load.mean() - load)


def rms(x: Tensor, weight: Weight, shape: TinyShape) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), weight.weight, shape.rms_eps).to(x.dtype)


def gated(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """x [tokens, heads, rope]: neighbours (2i, 2i + 1) turned by angles [tokens, rope/2]."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


def within_documents(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    """Causal attention, [tokens, heads, width] each, where a token sees its own document only.

    starts [documents + 1], int32: where each document begins, at most LONGEST after the one before, and the end; the
    last may be repeated.
    """
    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn  # takes seconds, torch's compiler included

        attended = varlen_attn(q, k, v, starts, starts, LONGEST, LONGEST, window_size=(-1, 0))
        assert isinstance(attended, Tensor), "the log-sum-exp was not requested"
        return attended
    documents = torch.searchsorted(starts, torch.arange(len(q), dtype=starts.dtype), right=True)
    mask = (documents[:, None] == documents) & torch.ones(len(q), len(q), dtype=torch.bool).tril()
    q, k, v = (one.transpose(0, 1)[None] for one in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1)
