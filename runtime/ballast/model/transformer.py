"""A model on the CPU: passes spec, weights, tables and cache to the C++ forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels, model
from ballast.model.batch import Batch
from ballast.model.kv_pool import KvPool, StatePool
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.feed_forward import EXPERTS
from ballast.model.layers.grouped import BlockIndexSpec, GroupedSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.layers.layer import LayerSpec, Mixer, RecurrentMixer
from ballast.model.layers.ngram import NgramSpec
from ballast.model.layers.stream import GatedStreamSpec, StreamSpec
from ballast.model.packed_tensors import HeadMatrix
from ballast.model.rope import build_rope_table, softmax_scale
from ballast.model.runner import Runner
from ballast.model.spec import ModelSpec
from ballast.model.weights import ModelWeights

ALIVE_EVERY_S = 0.1
"""Far below what makes a step count as dead, far above the milliseconds that waiting for the GIL may take."""

MixerShape = model.LatentShape | model.GroupedShape | model.DeltaNetShape | model.KimiDeltaShape | model.CompressedShape


class Transformer(Runner):
    """A loaded model and its KV pool; on a CPU."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        pool: kernels.ThreadPool,
        isa: str,
        kv: KvPool,
        num_positions: int,
        states: StatePool | None = None,
    ) -> None:
        """`states`: None for a model without recurrent state."""
        ropes = [build_rope_table(rope, num_positions, weights.rope_factors) for rope in spec.ropes]
        self.pool = pool
        self.vocabulary = spec.vocab_size
        self._routed = [layer[EXPERTS] for layer in weights.layers if EXPERTS in layer]
        self._model = model.Transformer(
            pool,
            isa=isa,
            shape=_shape(spec),
            embedding=weights.embedding,
            layers=[
                _layer(own, layer, _rope_index(spec, layer.mixer))
                for own, layer in zip(weights.layers, spec.layers, strict=True)
            ],
            output_tensors=weights.output_tensors,
            output=weights.output,
            ropes=[(rope.cos, rope.sin, rope.query_scale) for rope in ropes],
            kv_layers=kv.layers,
            block_tokens=kv.block_tokens,
            state_layers=[] if states is None else states.layers,
        )

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of routed experts' weights that steps have read from host memory so far."""
        return self._model.expert_bytes_read

    @property
    def expert_uses(self) -> NDArray[np.int64]:
        """[routed layers, E] the number of tokens that each expert was computed for so far."""
        return np.stack([experts.uses for experts in self._routed])

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Write the batch's KV and states; return logits [sampled, vocabulary]."""
        return self._model.forward(
            token_ids=batch.token_ids,
            positions=batch.positions,
            slots=batch.slots,
            query_indptr=batch.query_indptr,
            kv_indptr=batch.kv_indptr,
            kv_indices=batch.kv_indices,
            sampled=batch.sampled,
            window_slots=batch.window_slots,
            window_indices=batch.window_indices,
            states=batch.states,
            earlier_ids=batch.earlier_ids,
            alive=alive,
            alive_every_s=ALIVE_EVERY_S,
        )


def _shape(spec: ModelSpec) -> model.Shape:
    routing, stream = spec.routing, spec.stream
    return model.Shape(
        hidden=spec.hidden,
        rms_eps=spec.rms_eps,
        num_experts=routing.num_experts,
        num_experts_used=routing.num_experts_used,
        num_groups=routing.num_groups,
        num_groups_used=routing.num_groups_used,
        gating=routing.gating,
        group_score_top2=routing.group_score == "top2_sum",
        normalize_weights=routing.normalize_weights,
        weights_scale=routing.weights_scale,
        **({} if stream is None else _stream(stream)),
    )


def _stream(stream: StreamSpec | GatedStreamSpec) -> dict[str, Any]:
    if isinstance(stream, GatedStreamSpec):
        return {"num_stream_rows": stream.num_rows, "stream_rank": stream.rank}
    return {"num_stream_rows": stream.num_rows, "stream_rounds": stream.rounds, "stream_eps": stream.eps}


def _layer(weights: Mapping[str, Any], layer: LayerSpec, rope: int) -> model.Layer:
    return model.Layer(
        mixer=_mixer(layer.mixer),
        ngram=None if layer.ngram is None else _ngram(layer.ngram),
        rope=rope,
        tensors={
            role: _heads(weight) if isinstance(weight, HeadMatrix) else weight for role, weight in weights.items()
        },
    )


def _ngram(ngram: NgramSpec) -> model.NgramShape:
    return model.NgramShape(
        multipliers=ngram.multipliers,
        head_offsets=ngram.head_offsets,
        head_sizes=ngram.head_sizes,
        end_id=ngram.end_id,
        conv_taps=ngram.conv_taps,
    )


def _rope_index(spec: ModelSpec, mixer: Mixer) -> int:
    """Of its rotation; 0 if positions do not count."""
    if isinstance(mixer, RecurrentMixer) or mixer.rope not in spec.ropes:
        return 0
    return spec.ropes.index(mixer.rope)


def _mixer(mixer: Mixer) -> MixerShape:
    if isinstance(mixer, DeltaNetSpec):
        return _delta_net(mixer)
    if isinstance(mixer, KimiDeltaSpec):
        return _kimi_delta(mixer)
    if isinstance(mixer, CompressedSpec):
        return _compressed(mixer)
    return _latent(mixer) if isinstance(mixer, LatentSpec) else _grouped(mixer)


def _delta_net(mixer: DeltaNetSpec) -> model.DeltaNetShape:
    return model.DeltaNetShape(
        num_heads=mixer.num_heads,
        num_key_heads=mixer.num_key_heads,
        key_dim=mixer.key_dim,
        v_dim=mixer.v_dim,
        conv_taps=mixer.conv_taps,
        heads_alternate=mixer.heads_alternate,
        sigmoid_gates=mixer.gate == "sigmoid",
    )


def _kimi_delta(mixer: KimiDeltaSpec) -> model.KimiDeltaShape:
    return model.KimiDeltaShape(
        num_heads=mixer.num_heads,
        head_dim=mixer.head_dim,
        conv_taps=mixer.conv_taps,
        lower_bound=mixer.lower_bound,
    )


def _latent(mixer: LatentSpec) -> model.LatentShape:
    return model.LatentShape(
        num_heads=mixer.num_heads,
        kv_lora_rank=mixer.kv_lora_rank,
        nope_dim=mixer.nope_dim,
        rope_dim=mixer.rope.dim,
        v_dim=mixer.v_dim,
        softmax_scale=softmax_scale(mixer),
        index=None if mixer.index is None else _index(mixer.index),
        rotates=mixer.rotates,
    )


def _index(index: IndexSpec) -> model.IndexerShape:
    return model.IndexerShape(
        num_heads=index.num_heads,
        key_width=index.key_dim,
        top_k=index.top_k,
        pairs_apart=index.pairs_apart,
        pool=index.pool,
    )


def _compressed(mixer: CompressedSpec) -> model.CompressedShape:
    index = mixer.index
    return model.CompressedShape(
        num_heads=mixer.num_heads,
        head_dim=mixer.head_dim,
        rope_dim=mixer.rope.dim,
        window=mixer.window,
        ratio=mixer.ratio,
        output_groups=mixer.output_groups,
        index=None
        if index is None
        else model.EntryIndexShape(num_heads=index.num_heads, key_width=index.key_dim, top_k=index.top_k),
    )


def _grouped(mixer: GroupedSpec) -> model.GroupedShape:
    return model.GroupedShape(
        num_heads=mixer.num_heads,
        num_kv_heads=mixer.num_kv_heads,
        head_dim=mixer.head_dim,
        v_dim=mixer.v_dim,
        rope_dim=mixer.rope.dim,
        softmax_scale=softmax_scale(mixer),
        norms_all_heads=mixer.norms_all_heads,
        window=mixer.window or 0,
        value_scale=mixer.value_scale,
        softplus_gates=mixer.gate == "softplus",
        gates_entries=mixer.gates_entries,
        gates_queries=mixer.gates_queries,
        index=None if mixer.index is None else _block_index(mixer.index),
    )


def _block_index(index: BlockIndexSpec) -> model.IndexerShape:
    return model.IndexerShape(
        num_heads=index.num_heads,
        key_width=index.key_dim,
        top_k=index.top_k,
        pairs_apart=True,
        pool=index.pool,
        averages=True,
    )


def _heads(heads: HeadMatrix) -> model.HeadMatrix:
    return model.HeadMatrix(heads.matrix, heads.head_stride, heads.row_offset, heads.transposed)
