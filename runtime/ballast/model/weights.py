"""A model's weights in the form that the CPU kernels need: matrices packed for the instruction set, norms as float32.

The mapped file's pages are released once they are packed, so that one copy stays in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import gguf
import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.errors import ModelError
from ballast.host.machine import read_machine
from ballast.model.spec import LatentSpec, ModelSpec
from ballast.model.tensors import expected_tensors, scale_name
from ballast.weights.gguf import GgufModel, block_of
from ballast.weights.packed_panels import FileOf, Packed, PackedPanels
from ballast.weights.read_ahead import ReadAhead

F32 = NDArray[np.float32]


_PLAIN_FLOATS = frozenset(
    {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16}
)


@dataclass(frozen=True, slots=True)
class HeadMatrix:
    """One matrix per head inside a larger one: head h owns rows from h * head_stride + row_offset."""

    matrix: kernels.Matrix
    head_stride: int
    row_offset: int
    transposed: bool
    """Whether the head's matrix is applied transposed, as W_UK of the joint layout."""


@dataclass(frozen=True, slots=True)
class QueryWeights:
    """Query projection: low-rank (down, norm, up) in V2 and V3, a single matrix (up) in V2-Lite."""

    down: kernels.Matrix | None  # [q_lora_rank, D]
    norm: F32 | None  # [q_lora_rank]
    up: kernels.Matrix  # [H * (nope + rope), q_lora_rank or D]


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """What chooses the positions that a layer's attention sees."""

    query_up: kernels.Matrix  # [index heads * key_dim, q_lora_rank]
    key: kernels.Matrix  # [key_dim, D]
    key_norm: F32  # [key_dim], of a layer norm
    key_shift: F32  # [key_dim]
    head_weights: kernels.Matrix  # [index heads, D]


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """Latent attention. W_UK and W_UV carry queries into the latent space and results out of it."""

    query: QueryWeights
    kv_a: kernels.Matrix  # [kv_lora_rank + rope, D]
    kv_a_norm: F32  # [kv_lora_rank]
    k_up: HeadMatrix  # per head [kv_lora_rank, nope], or transposed
    v_up: HeadMatrix  # per head [v, kv_lora_rank]
    output: kernels.Matrix  # [D, H * v]
    indexer: IndexerWeights | None


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """Grouped-query attention. None for biases and norms that the model does not have."""

    query: kernels.Matrix  # [H * head_dim, D]
    key: kernels.Matrix  # [kv heads * head_dim, D]
    value: kernels.Matrix  # [kv heads * v, D]
    query_bias: F32 | None
    key_bias: F32 | None
    value_bias: F32 | None
    query_norm: F32 | None  # [head_dim], the same for all heads
    key_norm: F32 | None
    output: kernels.Matrix  # [D, H * v]


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Router and routed experts of one layer."""

    router: kernels.Matrix  # [E, D]
    bias: F32 | None  # [E], for selection only
    experts: kernels.Experts


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer layer. `mlp`, as one expert that every token goes to, is the dense feed-forward, or the shared
    expert beside routed ones."""

    attention_norm: F32  # [D]
    attention: LatentWeights | GroupedWeights
    ffn_norm: F32  # [D]
    mlp: kernels.Experts | None
    experts: ExpertWeights | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The whole model."""

    embedding: kernels.Matrix  # [vocabulary, D]
    layers: tuple[LayerWeights, ...]
    output_norm: F32  # [D]
    output: kernels.Matrix  # [sampled vocabulary, D]


_NEXT_PART = {"gate": "up", "up": "down"}
"""In the order in which experts are packed."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How matrices are packed: on whose threads, for which instruction set, and how many bytes an activation is rounded
    to where the weights are quantised; None: by their type."""

    pool: kernels.ThreadPool
    isa: str
    activation_bytes: int | None
    kept: PackedPanels | None = None
    """Where panels are kept beyond the process; None: nowhere."""
    kept_tensors: Collection[str] = ()
    """Tensors whose panels are kept there."""


def load_weights(
    gguf_model: GgufModel,
    spec: ModelSpec,
    num_sampled_ids: int,
    packing: Packing,
    report: Callable[[float], None],
) -> ModelWeights:
    """Pack every tensor of a checked file; for "reference", and the embedding always, they are seen in place.
    `report` gets the share of bytes done, 0…1, after each layer. Raises ModelError for an indexer that is not finite:
    its choice would go wrong where no logit shows it.

    The output head ends at `num_sampled_ids` rows: a row without a token is never computed, so never sampled.
    """
    with read_ahead(gguf_model, spec, packing) as ahead:
        tensors = Tensors(gguf_model, packing, ahead)
        layers = []
        for index, share in enumerate(shares_after_layers(gguf_model, spec.num_layers)):
            layers.append(_load_layer(tensors, spec, index))
            report(share)
        output = "token_embd.weight" if spec.tied_output else "output.weight"
        return ModelWeights(
            embedding=tensors.view("token_embd.weight"),
            layers=tuple(layers),
            output_norm=tensors.vector("output_norm.weight"),
            output=tensors.matrix(output, num_rows=min(num_sampled_ids, spec.vocab_size)),
        )


def read_ahead(gguf_model: GgufModel, spec: ModelSpec, packing: Packing) -> ReadAhead:
    """What reads the tensors that will be packed, layer by layer, while others are packed. What was packed leaves the
    page cache where memory has no room for both."""
    names = set() if packing.isa == "reference" else expected_tensors(spec).keys() - {"token_embd.weight"}
    if packing.kept is not None and packing.kept.is_filled:
        names -= set(packing.kept_tensors)
    layers = {name: block_of(name) for name in gguf_model.tensors if name in names}
    last = spec.num_layers
    names_by_layer = sorted(layers, key=lambda name: last if (layer := layers[name]) is None else layer)
    num_bytes = sum(gguf_model.tensors[name].num_bytes for name in names_by_layer)
    return ReadAhead(gguf_model, names_by_layer, drops_packed=2 * num_bytes > read_machine().memory.available_bytes)


def shares_after_layers(gguf_model: GgufModel, num_layers: int) -> list[float]:
    """Share of the model's bytes that lies in each layer and those before it; the last entry leaves out what belongs to
    no layer."""
    num_bytes = [0] * num_layers
    for name, info in gguf_model.tensors.items():
        index = block_of(name)
        if index is not None and index < num_layers:
            num_bytes[index] += info.num_bytes
    total = sum(info.num_bytes for info in gguf_model.tensors.values())
    return [done / total for done in itertools.accumulate(num_bytes)]


class Tensors:
    """Tensors of a file by name, as kernels take them. Stacked tensors are seen as one tall matrix."""

    def __init__(self, gguf_model: GgufModel, packing: Packing, ahead: ReadAhead | None = None) -> None:
        """`ahead` is told what is packed."""
        self._gguf = gguf_model
        self._packing = packing
        self._ahead = ahead

    def __contains__(self, name: str) -> bool:
        return name in self._gguf.tensors

    def view(self, name: str, num_rows: int | None = None) -> kernels.Matrix:
        """The tensor, or its first rows, in place."""
        info = self._gguf.tensors[name]
        cols = info.shape[-1]
        all_rows = int(np.prod(info.shape[:-1]))
        rows = all_rows if num_rows is None else num_rows
        data = self._gguf.data(name)[: info.num_bytes // all_rows * rows]
        return kernels.Matrix(data, int(info.ggml_type), rows, cols, self._scales(name))

    def _scales(self, name: str) -> F32 | tuple[()]:
        """What products with a tensor are multiplied by."""
        scale = scale_name(name)
        return self.vector(scale) if scale in self else ()

    def matrix(self, name: str, num_rows: int | None = None) -> kernels.Matrix:
        """The tensor, or its first rows, packed as one matrix."""
        view = self.view(name, num_rows)
        return self._packed(name, view, 1, view.rows, 0)

    def are_stackable(self, names: Sequence[str]) -> bool:
        """Whether tensors have one type and one number of columns, and none a scale of its own."""
        if any(scale_name(name) in self for name in names):
            return False
        return len({(self._gguf.tensors[name].ggml_type, self._gguf.tensors[name].shape[-1]) for name in names}) == 1

    def stacked(self, names: Sequence[str]) -> kernels.Matrix:
        """Tensors one below the other, packed as one matrix."""
        views = [self.view(name) for name in names]
        data = np.concatenate([self._gguf.data(name).reshape(-1) for name in names])
        whole = kernels.Matrix(data, views[0].ggml_type, sum(view.rows for view in views), views[0].cols)
        packed = self._packed(names[0], whole, 1, whole.rows, 0)
        for name in names[1:]:
            self._gguf.release(name)
        return packed

    def heads(
        self, name: str, num_heads: int, num_rows: int, stride: int, offset: int = 0, *, transposed: bool = False
    ) -> HeadMatrix:
        """One matrix a head out of the tensor, packed."""
        packed = self._packed(name, self.view(name), num_heads, num_rows, stride, offset, transposed)
        return HeadMatrix(packed, stride, offset, transposed)

    def _packed(
        self,
        name: str,
        view: kernels.Matrix,
        num_heads: int,
        num_rows: int,
        stride: int,
        offset: int = 0,
        transposed: bool = False,
    ) -> kernels.Matrix:
        def pack(file_of: FileOf | None) -> kernels.Matrix:
            return kernels.pack(
                self._packing.pool,
                view,
                self._packing.isa,
                num_heads=num_heads,
                head_stride=stride,
                row_offset=offset,
                num_rows=num_rows,
                transposed=transposed,
                activation_bytes=self._packing.activation_bytes,
                file_of=None if file_of is None else partial(file_of, what),
            )

        what = f"{name} {num_heads}x{num_rows}/{stride}+{offset}{' transposed' if transposed else ''}"
        packed = self._kept(name, pack)
        self._gguf.release(name)
        return packed

    def optional_vector(self, name: str) -> F32 | None:
        """None for a tensor that the file does not have."""
        return self.vector(name) if name in self else None

    def _kept(self, name: str, pack: Callable[[FileOf | None], Packed]) -> Packed:
        """What `pack` makes, with files where the tensor's panels are kept."""
        self._begin(name)
        kept = self._packing.kept
        return pack(None) if kept is None or name not in self._packing.kept_tensors else kept.pack(pack)

    def _begin(self, name: str) -> None:
        if self._ahead is not None:
            self._ahead.begin(name)

    def vector(self, name: str) -> F32:
        info = self._gguf.tensors[name]
        values = gguf.quants.dequantize(self._gguf.data(name), info.ggml_type)
        return np.ascontiguousarray(values, dtype=np.float32).reshape(-1)

    def check_finite(self, name: str) -> None:
        """Raises ModelError where a tensor of plain floats has a NaN or an infinity; other types are not looked at."""
        info = self._gguf.tensors[name]
        if info.ggml_type not in _PLAIN_FLOATS:
            return
        is_spoilt = ~np.isfinite(self.vector(name))
        if is_spoilt.any():
            raise ModelError(
                info.file,
                f"{np.count_nonzero(is_spoilt)} of {is_spoilt.size} values are NaN or infinite; the file is spoilt, "
                "get or convert it again",
                tensor=name,
            )

    def experts(self, block: str, suffix: str, num_experts: int, *, fused: bool = False) -> kernels.Experts:
        """Those of a layer, packed; `fused`: gate and up are one tensor."""
        names = {part: f"{block}.ffn_{part}{suffix}.weight" for part in ("gate", "up", "down")}
        if fused:
            names |= dict.fromkeys(("gate", "up"), f"{block}.ffn_gate_up{suffix}.weight")
            experts = kernels.Experts.fused(self.view(names["gate"]), self.view(names["down"]), num_experts)
        else:
            gate, up, down = map(self.view, names.values())
            experts = kernels.Experts(gate, up, down, num_experts)
        packing = self._packing

        def done(part: str) -> None:
            self._gguf.release(names[part])
            if part in _NEXT_PART:
                self._begin(names[_NEXT_PART[part]])

        def pack(file_of: FileOf | None) -> kernels.Experts:
            def file_of_part(part: str, node: int, num_bytes: int) -> kernels.PanelFile | None:
                assert file_of is not None
                return file_of(f"{names[part]} {part} of {num_experts} experts, node {node}", num_bytes)

            return experts.packed(
                packing.pool,
                packing.isa,
                activation_bytes=packing.activation_bytes,
                done=done,
                file_of=None if file_of is None else file_of_part,
            )

        return self._kept(names["gate"], pack)

    def latent_heads(self, spec: ModelSpec, block: str) -> tuple[HeadMatrix, HeadMatrix]:
        """A layer's W_UK and W_UV, packed."""
        heads, latent = spec.num_heads, spec.latent
        if latent.mla_layout == "joint":
            # Per head: nope rows of W_UK transposed, then v rows of W_UV.
            joint, stride = f"{block}.attn_kv_b.weight", latent.nope_dim + latent.v_dim
            k_up = self.heads(joint, heads, latent.nope_dim, stride, transposed=True)
            v_up = self.heads(joint, heads, latent.v_dim, stride, latent.nope_dim)
        else:
            k_up = self.heads(f"{block}.attn_k_b.weight", heads, latent.kv_lora_rank, latent.kv_lora_rank)
            v_up = self.heads(f"{block}.attn_v_b.weight", heads, latent.v_dim, latent.v_dim)
        return k_up, v_up

    def routed(self, spec: ModelSpec, block: str) -> ExpertWeights:
        """A layer's router and routed experts, packed."""
        bias = f"{block}.exp_probs_b.bias"
        return ExpertWeights(
            router=self.matrix(f"{block}.ffn_gate_inp.weight"),
            bias=self.optional_vector(bias),
            experts=self.experts(block, "_exps", spec.num_experts, fused=spec.fused_experts),
        )


def _load_layer(tensors: Tensors, spec: ModelSpec, index: int) -> LayerWeights:
    block = f"blk.{index}"
    dense = index < spec.num_dense_layers
    if dense:
        mlp: kernels.Experts | None = tensors.experts(block, "", 1)
    else:
        mlp = tensors.experts(block, "_shexp", 1) if spec.num_shared_experts else None
    return LayerWeights(
        attention_norm=tensors.vector(f"{block}.attn_norm.weight"),
        attention=_load_latent(tensors, spec, index)
        if isinstance(spec.attention, LatentSpec)
        else _load_grouped(tensors, block),
        ffn_norm=tensors.vector(f"{block}.{spec.architecture.ffn_norm}.weight"),
        mlp=mlp,
        experts=None if dense else tensors.routed(spec, block),
    )


def _load_latent(tensors: Tensors, spec: ModelSpec, index: int) -> LatentWeights:
    block = f"blk.{index}"
    if spec.latent.q_lora_rank is None:
        query = QueryWeights(None, None, tensors.matrix(f"{block}.attn_q.weight"))
    else:
        query = QueryWeights(
            tensors.matrix(f"{block}.attn_q_a.weight"),
            tensors.vector(f"{block}.attn_q_a_norm.weight"),
            tensors.matrix(f"{block}.attn_q_b.weight"),
        )
    k_up, v_up = tensors.latent_heads(spec, block)
    return LatentWeights(
        query=query,
        kv_a=tensors.matrix(f"{block}.attn_kv_a_mqa.weight"),
        kv_a_norm=tensors.vector(f"{block}.attn_kv_a_norm.weight"),
        k_up=k_up,
        v_up=v_up,
        output=tensors.matrix(f"{block}.attn_output.weight"),
        indexer=_load_indexer(tensors, f"{block}.indexer") if spec.index and spec.index.layers[index] else None,
    )


def _load_indexer(tensors: Tensors, prefix: str) -> IndexerWeights:
    for part in ("k_norm.weight", "k_norm.bias", "proj.weight"):
        tensors.check_finite(f"{prefix}.{part}")
    return IndexerWeights(
        query_up=tensors.matrix(f"{prefix}.attn_q_b.weight"),
        key=tensors.matrix(f"{prefix}.attn_k.weight"),
        key_norm=tensors.vector(f"{prefix}.k_norm.weight"),
        key_shift=tensors.vector(f"{prefix}.k_norm.bias"),
        head_weights=tensors.matrix(f"{prefix}.proj.weight"),
    )


def _load_grouped(tensors: Tensors, block: str) -> GroupedWeights:
    return GroupedWeights(
        query=tensors.matrix(f"{block}.attn_q.weight"),
        key=tensors.matrix(f"{block}.attn_k.weight"),
        value=tensors.matrix(f"{block}.attn_v.weight"),
        query_bias=tensors.optional_vector(f"{block}.attn_q.bias"),
        key_bias=tensors.optional_vector(f"{block}.attn_k.bias"),
        value_bias=tensors.optional_vector(f"{block}.attn_v.bias"),
        query_norm=tensors.optional_vector(f"{block}.attn_q_norm.weight"),
        key_norm=tensors.optional_vector(f"{block}.attn_k_norm.weight"),
        output=tensors.matrix(f"{block}.attn_output.weight"),
    )
