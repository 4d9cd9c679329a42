"""Checks before loading whether a GPU can compute a model."""

from __future__ import annotations

from ballast.model.hybrid.device_mixers import device_mixers
from ballast.model.hybrid.recurrent.sizes import why_not_supported
from ballast.model.hybrid.sparse.sizes import MAX_CHOSEN
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import AttentionMixer, RecurrentMixer
from ballast.model.layers.short_rows import MIN_SHORT_RANK, SHORT_ALIGNMENT
from ballast.model.layers.stream import StreamSpec
from ballast.model.spec import ModelSpec


def why_not_fp8(spec: ModelSpec) -> str | None:
    """Why a GPU's kernels cannot keep the KV cache in 8 bits; None if they can."""
    for mixer in spec.attentions:
        problem = _why_not_fp8(mixer)
        if problem is not None:
            return problem
    return None


def _why_not_fp8(mixer: AttentionMixer) -> str | None:
    if isinstance(mixer, CompressedSpec):
        return "its attention reads compressed entries, and no kernels exist for them in 8 bits"
    if isinstance(mixer, LatentSpec):
        rank = mixer.kv_lora_rank
        if mixer.index is not None:
            return "its tokens attend to selected positions, and no kernels exist for them in 8 bits"
        if rank < MIN_SHORT_RANK or rank & (rank - 1):
            return f"its latents have {rank} numbers, and kernels for 8 bits need a power of two from {MIN_SHORT_RANK}"
        return None
    if mixer.index is not None:
        return "its tokens attend to selected positions, and no kernels exist for them in 8 bits"
    if mixer.head_dim % SHORT_ALIGNMENT or mixer.v_dim % SHORT_ALIGNMENT:
        widths = f"{mixer.head_dim} and {mixer.v_dim}"
        return f"its heads have {widths} numbers, and kernels for 8 bits need multiples of {SHORT_ALIGNMENT}"
    return None


def why_not_on_gpu(spec: ModelSpec) -> str | None:
    """Why a GPU cannot compute the layers; None if it can."""
    if isinstance(spec.stream, StreamSpec) and spec.stream.num_rows & (spec.stream.num_rows - 1):
        return (
            f"its residual stream has {spec.stream.num_rows} rows, and kernels on a GPU support powers of two; "
            "the CPU supports any number"
        )
    recurrent = [mixer for mixer in spec.mixers if isinstance(mixer, RecurrentMixer)]
    problems = [problem for problem in map(why_not_supported, recurrent) if problem is not None]
    if problems:
        return f"{problems[0]}; the CPU supports it"
    if device_mixers(spec) is None:
        return (
            "its layers have different kinds of latent attention, or latent attention with other attention, and a GPU "
            "supports one kind of latent attention alone; the CPU supports all"
        )
    for mixer in spec.attentions:
        count, counted = _num_selected(mixer)
        if count > MAX_CHOSEN:
            limit = f"kernels on a GPU select at most {MAX_CHOSEN}; the CPU has no limit"
            return f"a token attends to {count} {counted}, and {limit}"
    return None


def _num_selected(mixer: AttentionMixer) -> tuple[int, str]:
    """How many positions, pools or entries are selected for a token, and what they are."""
    if mixer.index is None:
        return 0, ""
    if isinstance(mixer, CompressedSpec):
        return mixer.index.top_k, "compressed entries"
    pool = mixer.index.pool
    return mixer.index.top_k // pool, "positions" if pool == 1 else f"pools of {pool} positions"
