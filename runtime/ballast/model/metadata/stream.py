"""The hyper-connections of files whose residual stream has several rows per token."""

from __future__ import annotations

from ballast.model.layers.stream import GatedStreamSpec, StreamSpec
from ballast.model.metadata.keys import Keys

_MAX_ROWS = 8
_MAX_ROUNDS = 1000
_MAX_RANK = 1 << 16
# Far above any model's. They bound what a step allocates and computes.


def read_stream(keys: Keys) -> StreamSpec | GatedStreamSpec | None:
    """None for a plain residual stream. Raises ModelError for a key that is missing, senseless or absurd."""
    if not keys.architecture.hyper_connections:
        return None
    num_rows = keys.whole("hyper_connection.count", minimum=2, most=_MAX_ROWS)
    if keys.architecture.gates_stream:
        return _read_gates(keys, num_rows)
    rounds = keys.whole("hyper_connection.sinkhorn_iterations", most=_MAX_ROUNDS)
    eps = keys.number("hyper_connection.epsilon", above=0.0, most=0.1)
    return StreamSpec(num_rows, rounds, eps, keys.architecture.weighs_stream_end)


def _read_gates(keys: Keys, num_rows: int) -> GatedStreamSpec:
    rank = keys.whole("hyper_connection.low_rank", most=_MAX_RANK)
    return GatedStreamSpec(num_rows, rank, is_merged=keys.has_tensor("blk.0.hc_attn_down_inject.weight"))
