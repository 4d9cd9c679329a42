"""The n-gram embedding of Qwen3.8-Flash-Next's files (PLE)."""

from __future__ import annotations

from collections.abc import Sequence

from ballast._core import sched
from ballast.errors import shown
from ballast.model.layers.ngram import NgramSpec
from ballast.model.metadata.keys import LARGEST, Keys, is_whole
from ballast.model.metadata.limits import MAX_HEADS, MAX_TAPS
from ballast.model.tensors import NGRAM_TABLE

_LARGEST_HASH = 2**63
"""Products of token ids and multipliers are below it, so that they are the same with and without a sign."""


def read_ngram(keys: Keys, is_recurrent: Sequence[bool], vocab_size: int) -> tuple[int, NgramSpec] | None:
    """The layer that has it, and its sizes; None for a file without. Raises ModelError for keys that are missing,
    senseless or absurd, and for a table of another size."""
    found = keys.get("ple.layers") if keys.architecture.embeds_ngrams else None
    if found is None or found == []:
        if keys.has_tensor(NGRAM_TABLE):
            raise keys.wrong("ple.layers", f"the layer that adds rows of {NGRAM_TABLE}")
        return None
    if not isinstance(found, list) or len(found) != 1 or not is_whole(found[0], 0):
        raise keys.wrong("ple.layers", "at most one layer")
    layer = found[0]
    if layer >= len(is_recurrent) or not is_recurrent[layer]:
        raise keys.wrong("ple.layers", "a layer with recurrent state, counted from 0")
    rows, width = _table(keys)
    most = keys.whole("ple.ngram_size", minimum=2, most=sched.EARLIER_TOKENS + 1)
    num_heads = (most - 1) * keys.whole("ple.heads_per_ngram", most=MAX_HEADS // (most - 1))
    taps = keys.whole("ple.conv_kernel", minimum=2, most=MAX_TAPS)
    end_id = keys.whole("ple.eos_token_id", minimum=0)
    if end_id >= vocab_size:
        raise keys.wrong("ple.eos_token_id", f"a token, at most {vocab_size - 1}")
    sizes = _numbers(keys, "ple.head_vocab_sizes", num_heads, 1, rows)
    offsets = _numbers(keys, "ple.head_offsets", num_heads, 0, rows)
    _check_heads(keys, offsets, sizes, rows)
    multipliers = _numbers(keys, "ple.layer_multipliers", most, 1, (_LARGEST_HASH - 1) // max(1, vocab_size - 1))
    return layer, NgramSpec(rows, width, multipliers, offsets, sizes, end_id, taps)


def _table(keys: Keys) -> tuple[int, int]:
    """Rows of the table, and their width."""
    width = keys.whole("embedding_length_per_layer_input")
    info = keys.gguf.tensors.get(NGRAM_TABLE)
    if info is None or len(info.shape) != 2 or info.shape[1] != width:
        found = "nothing" if info is None else f"shape {info.shape}"
        raise keys.refuse(f"found {found}; expected a matrix with rows of {width} numbers", NGRAM_TABLE)
    if info.shape[0] > LARGEST:
        raise keys.refuse(
            f"has {info.shape[0]} rows; expected at most {LARGEST}, because row ids have 32 bits", NGRAM_TABLE
        )
    return info.shape[0], width


def _numbers(keys: Keys, key: str, count: int, least: int, most: int) -> tuple[int, ...]:
    """`count` whole numbers from `least` to `most`, which may be beyond 32 bits."""
    found = keys.get(key)
    if (
        not isinstance(found, list)
        or len(found) != count
        or not all(isinstance(each, int) and not isinstance(each, bool) and least <= each <= most for each in found)
    ):
        raise keys.wrong(key, f"{count} whole numbers, at least {least} and at most {most}")
    return tuple(found)


def _check_heads(keys: Keys, offsets: Sequence[int], sizes: Sequence[int], rows: int) -> None:
    for head, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        if offset + size > rows:
            raise keys.refuse(
                f"{keys.full('ple.head_offsets')}: head {head} has {size} rows from row {offset} on; the table has "
                f"{shown(rows)} rows"
            )
