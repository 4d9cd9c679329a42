"""Rounds weights during training like the file, so that training adapts to it.

The roundings are those of `ballast.weights.quantize`, in torch and differentiable: gradients pass straight through
(arXiv 1308.3432).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from gguf import GGMLQuantizationType as GgmlType
from torch import Tensor

from ballast.tiny.quant_mix import types_for
from ballast.tiny.shape import TinyShape
from ballast.tiny.spec import spec_of


def rounded(weights: Mapping[str, Tensor], shape: TinyShape, quant: str) -> dict[str, Tensor]:
    """`weights`, by GGUF name, rounded like type `quant` of `ballast.tiny.quant_mix` in the split layout."""
    stored = dict(weights)
    heads = (shape.num_heads, shape.nope_dim + shape.v_dim)
    for name in weights:
        if name.endswith("attn_kv_b.weight"):
            keys, values = stored.pop(name).unflatten(0, heads).split([shape.nope_dim, shape.v_dim], 1)
            stored[name.replace("kv_b", "k_b")] = keys.transpose(1, 2)
            stored[name.replace("kv_b", "v_b")] = values
    out = _rounded(stored, types_for(spec_of(shape, 1, "split"), quant))
    for name in weights:
        if name.endswith("attn_kv_b.weight"):
            keys, values = out.pop(name.replace("kv_b", "k_b")), out.pop(name.replace("kv_b", "v_b"))
            out[name] = torch.cat([keys.transpose(1, 2), values], 1).flatten(0, 1)
    return {name: out[name] for name in weights}


def _rounded(weights: Mapping[str, Tensor], types: Mapping[str, GgmlType]) -> dict[str, Tensor]:
    """Rounds all tensors of one type in one call, because they are many and small."""
    names: dict[GgmlType, list[str]] = {}
    for name in weights:
        names.setdefault(types[name], []).append(name)
    out: dict[str, Tensor] = {}
    for kind, same in names.items():
        with torch.no_grad():
            exact = torch.cat([weights[name].detach().float().reshape(-1) for name in same])
            changes = (_ROUND[kind](exact).reshape(-1) - exact).split([weights[name].numel() for name in same])
        for name, change in zip(same, changes, strict=True):
            out[name] = weights[name] + change.view(weights[name].shape)
    return out


def _q4_k(x: Tensor) -> Tensor:
    subs = x.reshape(-1, 8, 32)
    lowest = subs.amin(-1).clamp(max=0)
    span = subs.amax(-1).clamp(min=0) - lowest
    d, scales = _scales(span / 15, 63)
    dmin, minimums = _scales(-lowest, 63)
    step, low = (d * scales)[..., None], (dmin * minimums)[..., None]
    q = torch.round((subs + low) * _inverse(step)).clamp(0, 15)
    return q * step - low


def _q6_k(x: Tensor) -> Tensor:
    subs = x.reshape(-1, 16, 16)
    extreme = subs.gather(-1, subs.abs().argmax(-1, keepdim=True))[..., 0]
    d, scales = _scales(extreme / -32, 127)
    step = (d * scales)[..., None]
    return torch.round(subs * _inverse(step)).clamp(-32, 31) * step


def _q8_0(x: Tensor) -> Tensor:
    blocks = x.reshape(-1, 32)
    d = blocks.abs().amax(-1, keepdim=True) / 127
    return torch.round(blocks * _inverse(d)) * _half(d)


def _scales(exact: Tensor, top: int) -> tuple[Tensor, Tensor]:
    d = _half(exact.abs().amax(-1, keepdim=True) / top)
    return d, torch.round(exact * _inverse(d)).clamp(-top, top)


def _inverse(x: Tensor) -> Tensor:
    return (1 / x).masked_fill(x == 0, 0)


def _half(x: Tensor) -> Tensor:
    return x.half().float()


_ROUND: dict[GgmlType, Callable[[Tensor], Tensor]] = {
    GgmlType.F32: lambda x: x,
    GgmlType.F16: _half,
    GgmlType.Q8_0: _q8_0,
    GgmlType.Q6_K: _q6_k,
    GgmlType.Q4_K: _q4_k,
}
