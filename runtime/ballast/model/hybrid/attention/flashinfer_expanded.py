"""Attention outside the latent space by flashinfer's kernels, which are compiled while weights are loaded."""

from __future__ import annotations

import torch

from ballast.model.hybrid.attention.expanded import ExpandedSizes
from ballast.model.hybrid.attention.triton_expanded import TritonExpandedKernels

HEAD_DIM, V_DIM = 192, 128
"""The head sizes for which they are compiled: those of all DeepSeek models."""


class FlashinferExpandedKernels(TritonExpandedKernels):
    """`ExpandedKernels` on a GPU, for a cache in half precision, with flashinfer's attention."""

    def __init__(self, sizes: ExpandedSizes, num_saturated: torch.Tensor) -> None:
        """See the base class. Raises ImportError."""
        super().__init__(sizes, num_saturated)
        import flashinfer  # imported here, because it takes a second and needs a CUDA device

        self._attend = flashinfer.single_prefill_with_kv_cache

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, is_causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ExpandedKernels`."""
        attended, weight = self._attend(query, keys, values, causal=is_causal, sm_scale=1.0, return_lse=True)
        return attended, weight


def compile_single_prefill(device: torch.device) -> None:
    """Compile the kernels, unless flashinfer's cache has them. Raises ImportError, OSError or RuntimeError."""
    from flashinfer.jit.attention import gen_single_prefill_module
    from flashinfer.utils import PosEncodingMode, determine_attention_backend

    half, plain = torch.float16, PosEncodingMode.NONE.value
    backend = determine_attention_backend(device, plain, False, False, half, half)
    spec = gen_single_prefill_module(backend, half, half, half, HEAD_DIM, V_DIM, plain, False, False, False)
    spec.build_and_load()
