"""Measure the error that rounding activations adds to the error of quantised weights. Prints one JSON line per type.

A trained model's float weights are quantised to each file type. Compared with the float model, over documents that were
not used for training, the program reports the mean divergence (KL, in nats) of the next token with exact activations,
which is the type's own error, and the error that rounded activations add. Activations are rounded to integers for each
product with a quantised matrix, with one scale per group of neighbouring columns. For types whose AMX products multiply
codes by the sub-block's scale in two bytes, it also reports what one byte would add. A negative figure is noise:
rounding errors can cancel.

python benchmarks/engine/activations.py WEIGHTS.npz --tokenizer tokenizer.json [--ggml LIBRARY] [--types q2_k q4_k]

WEIGHTS.npz is written by `tools.tiny_model.train` with `--round_from 2` (weights that were never rounded), or by
off_grid.py. Its `shape` names sizes other than the built-in model's, as JSON with the fields of TinyShape. With --ggml,
a shared library of ggml quantises and weighs errors by the mean square of each column's activations, as for published
files. Otherwise `ballast.weights.quantize` quantises, which is coarser.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as GgmlType
from numpy.typing import NDArray
from torch import Tensor

from ballast.tiny.quant_mix import types_for
from ballast.tiny.shape import TinyShape
from ballast.tiny.spec import spec_of
from ballast.weights.quantize import quantize
from devkit.bench_record import bench_record
from tools.tiny_model.batches import encode
from tools.tiny_model.corpus.conversation import pieces
from tools.tiny_model.corpus.mixture import corpus
from tools.tiny_model.shape import SHAPE

Floats = NDArray[np.float32]
Rounding = Callable[[Tensor], Tensor]

TYPES = (
    *(
        "q4_k",
        "q2_k",
        "q3_k",
        "q5_k",
        "q6_k",
        "q8_0",
        "mxfp4",
        "iq4_xs",
        "q4_0",
        "q5_0",
        "q4_1",
        "q5_1",
        "iq4_nl",
        "nvfp4",
    ),
    *("tq2_0", "iq2_xxs", "iq3_xxs", "iq2_s", "iq3_s", "iq2_xs", "iq1_s", "iq1_m", "q4_k_m"),
)
ROUNDINGS = (*((8, cols) for cols in (32, 64, 128, 256)), *((bits, 256) for bits in range(9, 17)))
"""Bits per activation, and columns that share a scale."""
DROPPED_BITS = {GgmlType.Q4_K: 2, GgmlType.Q5_K: 3}
"""Divides a code times its sub-block's scale (at most 15 x 63 or 31 x 63), so that it fits a byte."""
UNSEEN = 987_654_321
"""A seed of the corpus that no training uses."""
LENGTH = 192
_FLOATS = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--ggml", type=Path)
    parser.add_argument("--types", nargs="*", default=TYPES)
    parser.add_argument("--bits", type=int, nargs="*", default=range(8, 17), help="bits per activation")
    parser.add_argument("--documents", type=int, default=128, help=f"each at most {LENGTH} tokens long")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further type after this time")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    deadline = time.monotonic() + options.seconds
    shape, weights = read_weights(options.weights)
    device = torch.device(options.device)
    ids, is_real, is_requested = (part.to(device) for part in documents(options.tokenizer, options.documents))
    model = Model(shape, {name: torch.from_numpy(value).to(device) for name, value in weights.items()})
    meter = Meter()
    exact = model.log_probabilities(ids, is_real, seen=meter)[is_requested[is_real]]
    loss = -float(exact.gather(-1, torch.roll(ids, -1, 1)[is_requested][:, None]).mean())
    quantizer = with_ggml(options.ggml, meter.mean_squares()) if options.ggml else quantize_own
    for quant in options.types:
        if time.monotonic() > deadline:
            break
        kinds = types_for(spec_of(shape, 1, "joint"), quant)
        as_in_file = partial(rounded_as, kinds=kinds, quantizer=quantizer)
        with ThreadPoolExecutor(options.threads) as pool:
            rounded = dict(zip(weights, pool.map(as_in_file, weights, weights.values()), strict=True))
            bytewise = dict(rounded)
            codes = [name for name in weights if kinds[name] in DROPPED_BITS]
            in_bytes = partial(as_in_file, in_bytes=True)
            bytewise.update(zip(codes, pool.map(in_bytes, codes, [weights[name] for name in codes]), strict=True))
        model = Model(shape, {name: torch.from_numpy(value).to(device) for name, value in rounded.items()})
        own = model.log_probabilities(ids, is_real)[is_requested[is_real]]
        own_kl = divergence(exact, own)
        added: dict[str, float] = {}
        from_own: dict[str, float] = {}
        for bits, cols in ((bits, cols) for bits, cols in ROUNDINGS if bits in options.bits):
            both = model.log_probabilities(ids, is_real, rounding=rounding_to(bits, cols))[is_requested[is_real]]
            added[f"{bits} bits / {cols}"] = significant(divergence(exact, both) - own_kl)
            from_own[f"{bits} bits / {cols}"] = significant(divergence(own, both))
        by_bytes: dict[str, float] = {}
        if codes:
            model = Model(shape, {name: torch.from_numpy(value).to(device) for name, value in bytewise.items()})
            for case, rounding in (("exact", None), ("8 bits / 256", rounding_to(8, 256))):
                both = model.log_probabilities(ids, is_real, rounding=rounding)[is_requested[is_real]]
                by_bytes[case] = significant(divergence(exact, both) - own_kl)
                by_bytes[f"{case}, from type"] = significant(divergence(own, both))
        print(
            bench_record(
                "engine/activations",
                f"{shape.name}: {quant}",
                parameters=sum(value.size for value in weights.values()),
                tokens=int(is_requested.sum()),
                quantised_by="ggml" if options.ggml else "ballast.weights.quantize",
                loss_of_floats=significant(loss),
                kl_of_type=significant(own_kl),
                kl_added=added,
                kl_from_type=from_own,
                **({"kl_added_with_scaled_codes_of_a_byte": by_bytes} if by_bytes else {}),
            ),
            flush=True,
        )


def read_weights(file: Path) -> tuple[TinyShape, dict[str, Floats]]:
    """Split keys and values, as files store them: attn_k_b [heads, latent, nope], attn_v_b [heads, v, latent]."""
    with np.load(file) as stored:
        shape = replace(SHAPE, **json.loads(str(stored["shape"]))) if "shape" in stored.files else SHAPE
        weights = {name: stored[name].astype(np.float32) for name in stored.files if name != "shape"}
    for name in [name for name in weights if name.endswith("attn_kv_b.weight")]:
        joint = weights.pop(name).reshape(shape.num_heads, shape.nope_dim + shape.v_dim, shape.kv_lora_rank)
        keys, values = joint[:, : shape.nope_dim], joint[:, shape.nope_dim :]
        weights[name.replace("kv_b", "k_b")] = np.ascontiguousarray(keys.transpose(0, 2, 1))
        weights[name.replace("kv_b", "v_b")] = np.ascontiguousarray(values)
    return shape, weights


def documents(tokenizer: str, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns token ids [count, LENGTH], a mask of tokens that are no padding, and a mask of positions whose next token
    the model generates. The model was not trained on the others."""
    backend = tokenizers.Tokenizer.from_file(tokenizer)
    ids, is_real = np.zeros((count, LENGTH), np.int64), np.zeros((count, LENGTH), bool)
    is_ours = np.zeros((count, LENGTH + 1), bool)
    for row, (conversation, think) in zip(range(count), corpus(UNSEEN), strict=False):
        parts = pieces(conversation, think=think)
        encoded = encode(backend, [part.text for part in parts])
        document = [token for some in encoded for token in some][:LENGTH]
        ours = [part.ours for part, some in zip(parts, encoded, strict=True) for _ in some][:LENGTH]
        ids[row, : len(document)], is_real[row, : len(document)] = document, True
        is_ours[row, : len(ours)] = ours
    return torch.from_numpy(ids), torch.from_numpy(is_real), torch.from_numpy(is_ours[:, 1:])


class Meter:
    """Accumulates the squares of each matrix's inputs."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def __call__(self, name: str, x: Tensor) -> None:
        rows = x.reshape(-1, x.shape[-1])
        if len(rows):  # an expert may have received no token
            self._sums[name] = self._sums.get(name, 0) + rows.square().mean(0)

    def mean_squares(self) -> dict[str, Floats]:
        """Returns the importance of each column, by the matrix's name, in arbitrary units."""
        return {name: value.cpu().numpy() for name, value in self._sums.items()}


class Model:
    """Runs the forward pass in float32 with the same products as Ballast: latent attention with queries projected into
    the latent space."""

    def __init__(self, shape: TinyShape, weights: Mapping[str, Tensor]) -> None:
        self._shape, self._weights = shape, weights
        self._round: Rounding = lambda x: x
        self._seen: Callable[[str, Tensor], None] = lambda name, x: None

    def log_probabilities(
        self,
        ids: Tensor,
        is_real: Tensor,
        rounding: Rounding | None = None,
        seen: Callable[[str, Tensor], None] | None = None,
    ) -> Tensor:
        """Logits for the token after each real one: [tokens, vocabulary]."""
        self._round = rounding or (lambda x: x)
        self._seen = seen or (lambda name, x: None)
        x = F.embedding(ids, self._weights["token_embd.weight"])
        for layer in range(self._shape.num_layers):
            prefix = f"blk.{layer}."
            x = x + self._attention(self._normed(x, f"{prefix}attn_norm"), prefix)
            x = x + self._mlp(self._normed(x, f"{prefix}ffn_norm")[is_real], prefix, layer, is_real, x)
        return F.log_softmax(self._product(self._normed(x[is_real], "output_norm"), "output"), -1)

    def _weight(self, name: str) -> Tensor:
        return self._weights[f"{name}.weight"]

    def _normed(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self._weight(name), self._shape.rms_eps)

    def _rounded(self, x: Tensor, name: str) -> Tensor:
        self._seen(f"{name}.weight", x)
        return self._round(x)

    def _product(self, x: Tensor, name: str) -> Tensor:
        return F.linear(self._rounded(x, name), self._weight(name))

    def _attention(self, x: Tensor, prefix: str) -> Tensor:
        shape = self._shape
        queries = self._normed(self._product(x, f"{prefix}attn_q_a"), f"{prefix}attn_q_a_norm")
        queries = self._product(queries, f"{prefix}attn_q_b").unflatten(-1, (shape.num_heads, -1))
        q_nope, q_rope = queries.split([shape.nope_dim, shape.rope_dim], -1)
        latent, k_rope = self._product(x, f"{prefix}attn_kv_a_mqa").split([shape.kv_lora_rank, shape.rope_dim], -1)
        latent = self._normed(latent, f"{prefix}attn_kv_a_norm")
        q_latent = torch.einsum(
            "dthn,hln->dthl", self._rounded(q_nope, f"{prefix}attn_k_b"), self._weight(f"{prefix}attn_k_b")
        )
        q = torch.cat([q_latent, self._rotated(q_rope)], -1)
        k = torch.cat([latent, self._rotated(k_rope[:, :, None])[:, :, 0]], -1)
        scores = torch.einsum("dthl,dsl->dhts", q, k) / (shape.nope_dim + shape.rope_dim) ** 0.5
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).tril()
        shares = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        seen = torch.einsum("dhts,dsl->dthl", shares, latent)
        values = torch.einsum(
            "dthl,hvl->dthv", self._rounded(seen, f"{prefix}attn_v_b"), self._weight(f"{prefix}attn_v_b")
        )
        return self._product(values.flatten(-2), f"{prefix}attn_output")

    def _rotated(self, x: Tensor) -> Tensor:
        """x [documents, tokens, heads, rope]."""
        exponents = torch.arange(0, self._shape.rope_dim, 2, device=x.device) / self._shape.rope_dim
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * self._shape.rope_theta**-exponents
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def _mlp(self, h: Tensor, prefix: str, layer: int, is_real: Tensor, like: Tensor) -> Tensor:
        dense = layer < self._shape.num_dense_layers
        out = self._gated(h, f"{prefix}ffn_", "") if dense else self._experts(h, prefix)
        return torch.zeros_like(like).masked_scatter(is_real[..., None], out)

    def _gated(self, h: Tensor, prefix: str, suffix: str) -> Tensor:
        gate, up = (self._product(h, f"{prefix}{part}{suffix}") for part in ("gate", "up"))
        return self._product(F.silu(gate) * up, f"{prefix}down{suffix}")

    def _experts(self, h: Tensor, prefix: str) -> Tensor:
        shape = self._shape
        scores = torch.sigmoid(F.linear(h, self._weight(f"{prefix}ffn_gate_inp")))
        in_groups = (scores + self._weights[f"{prefix}exp_probs_b.bias"]).unflatten(-1, (shape.num_groups, -1))
        best = in_groups.topk(min(2, in_groups.shape[-1]), -1).values.sum(-1).topk(shape.num_groups_used, -1).indices
        closed = torch.ones_like(in_groups[..., 0], dtype=torch.bool).scatter(-1, best, value=False)
        chosen = (
            in_groups.masked_fill(closed[..., None], -torch.inf).flatten(-2).topk(shape.num_experts_used, -1).indices
        )
        shares = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20) * shape.weights_scale
        out = self._gated(h, f"{prefix}ffn_", "_shexp")
        weights = {part: self._weight(f"{prefix}ffn_{part}_exps") for part in ("gate", "up", "down")}
        inputs = self._rounded(h, f"{prefix}ffn_gate_exps")
        self._seen(f"{prefix}ffn_up_exps.weight", h)
        for expert in range(shape.num_experts):
            takers = shares[:, expert].nonzero()[:, 0]
            own = inputs[takers]
            inner = F.silu(F.linear(own, weights["gate"][expert])) * F.linear(own, weights["up"][expert])
            down = F.linear(self._rounded(inner, f"{prefix}ffn_down_exps"), weights["down"][expert])
            out.index_add_(0, takers, down * shares[takers, expert, None])
        return out


def rounding_to(bits: int, cols: int) -> Rounding:
    """Rounds symmetrically to integers of `bits` bits times a scale per `cols` neighbouring columns, or per largest
    divisor of a row."""

    def rounded(x: Tensor) -> Tensor:
        together = cols
        while x.shape[-1] % together:
            together //= 2
        blocks = x.unflatten(-1, (-1, together))
        most = 2 ** (bits - 1) - 1
        step = (blocks.abs().amax(-1, keepdim=True) / most).clamp(min=1e-30)
        result: Tensor = (torch.round(blocks / step) * step).flatten(-2)
        return result

    return rounded


def divergence(expected: Tensor, found: Tensor) -> float:
    """Mean of KL(expected || found), in nats."""
    return float((expected.exp() * (expected - found)).sum(-1).double().mean())


Quantizer = Callable[[str, Floats, GgmlType], NDArray[np.uint8]]


def rounded_as(
    name: str, weights: Floats, kinds: Mapping[str, GgmlType], quantizer: Quantizer, *, in_bytes: bool = False
) -> Floats:
    """Returns `weights` as a file of these types stores them. With `in_bytes`, codes times scales
    are rounded to bytes: see `scaled_codes`."""
    kind = kinds[name]
    if kind == GgmlType.F32:
        return weights
    if kind in _FLOATS:
        return weights.astype(np.float16).astype(np.float32)
    if kind == GgmlType.NVFP4:  # with one scale per matrix, so that the blocks' scales are in range
        scale, most = np.abs(weights).max() / (6 * 448), np.float32(6 * 448)
        scaled = np.clip(weights / scale, -most, most)  # the largest quotient may be rounded up
        found: Floats = quantize_dequantize(name, scaled, kind, quantize_own) * scale
        return found
    if in_bytes and kind in DROPPED_BITS:
        return scaled_codes(quantizer(name, weights, kind), kind).reshape(weights.shape)
    return quantize_dequantize(name, weights, kind, quantizer)


def scaled_codes(blocks: NDArray[np.uint8], kind: GgmlType) -> Floats:
    """Returns the values of Q4_K or Q5_K blocks if each code times its sub-block's scale is rounded to a byte."""
    block_weights, block_bytes = GGML_QUANT_SIZES[kind]
    rows = blocks.reshape(-1, block_bytes)
    scale, least = (rows[:, at : at + 2].view(np.float16).astype(np.float64) for at in (0, 2))
    _, minima = gguf.quants.Q4_K.get_scale_min(rows[:, 4:16])
    minimum = np.repeat(least * minima.reshape(len(rows), -1), block_weights // 8, axis=1)
    weights = gguf.quants.dequantize(rows, kind).reshape(len(rows), -1)
    step = 2.0 ** DROPPED_BITS[kind] * np.where(scale == 0, 1.0, scale)
    codes = np.round((weights + minimum) / step)
    assert codes.min() >= 0
    assert codes.max() <= 255
    found: Floats = (codes * step - minimum).astype(np.float32)
    return found


def quantize_dequantize(name: str, weights: Floats, kind: GgmlType, quantizer: Quantizer) -> Floats:
    blocks = quantizer(name, weights, kind)
    return gguf.quants.dequantize(blocks, kind).reshape(weights.shape).astype(np.float32)


def quantize_own(name: str, weights: Floats, kind: GgmlType) -> NDArray[np.uint8]:
    return quantize(weights, kind)


def with_ggml(library: Path, importance: Mapping[str, Floats]) -> Quantizer:
    """Quantises with ggml's own functions. The embedding is looked up, so all its columns have the same weight."""
    ggml = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL | 1)
    chunk = ggml.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    for kind in GgmlType:
        ggml.ggml_quantize_init(ctypes.c_int(int(kind)))

    def quantize_blocks(name: str, weights: Floats, kind: GgmlType) -> NDArray[np.uint8]:
        if kind in (GgmlType.TQ1_0, GgmlType.TQ2_0):  # only ternary weights need it, and these are not ternary
            return quantize(weights, kind)
        weights = np.ascontiguousarray(weights)
        cols = weights.shape[-1]
        size, num_bytes = GGML_QUANT_SIZES[kind]
        columns = importance.get(name)
        if columns is None:
            columns = np.ones(cols, np.float32)
        columns = np.ascontiguousarray(columns, np.float32) + np.float32(1e-12)
        out = np.empty((*weights.shape[:-1], cols // size * num_bytes), np.uint8)
        address = weights.ctypes.data, out.ctypes.data
        chunk(int(kind), *address, 0, weights.size // cols, cols, columns.ctypes.data)
        return out

    return quantize_blocks


def significant(value: float) -> float:
    return float(f"{value:.3g}")


if __name__ == "__main__":
    main()
