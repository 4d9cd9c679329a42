"""The Triton kernel of small_copies.py.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_words"])
def copy_words(
    source,  # int32 [words], pinned host memory
    target,  # int32 [words]
    num_words,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_word = at < num_words
    tl.store(target + at, tl.load(source + at, mask=is_word, other=0), mask=is_word)
