"""The GGML type of each tensor of a tiny model."""

from __future__ import annotations

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from ballast.errors import ConfigError
from ballast.model.layers.tensor import Tensor
from ballast.model.spec import ModelSpec
from ballast.model.tensors import expected_tensors

_T = GGMLQuantizationType
_PLAIN = {
    "f32": (_T.F32, LlamaFileType.ALL_F32),
    "f16": (_T.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (_T.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (_T.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (_T.Q4_0, LlamaFileType.MOSTLY_Q4_0),
    "q4_1": (_T.Q4_1, LlamaFileType.MOSTLY_Q4_1),
    "q5_0": (_T.Q5_0, LlamaFileType.MOSTLY_Q5_0),
    "q5_1": (_T.Q5_1, LlamaFileType.MOSTLY_Q5_1),
    "q2_k": (_T.Q2_K, LlamaFileType.MOSTLY_Q2_K),
    "q3_k": (_T.Q3_K, LlamaFileType.MOSTLY_Q3_K_S),
    "q4_k": (_T.Q4_K, LlamaFileType.MOSTLY_Q4_K_S),
    "q5_k": (_T.Q5_K, LlamaFileType.MOSTLY_Q5_K_S),
    "q6_k": (_T.Q6_K, LlamaFileType.MOSTLY_Q6_K),
    "iq4_nl": (_T.IQ4_NL, LlamaFileType.MOSTLY_IQ4_NL),
    "iq4_xs": (_T.IQ4_XS, LlamaFileType.MOSTLY_IQ4_XS),
    "mxfp4": (_T.MXFP4, LlamaFileType.MOSTLY_MXFP4_MOE),
    "nvfp4": (_T.NVFP4, LlamaFileType.MOSTLY_NVFP4),
    "iq1_s": (_T.IQ1_S, LlamaFileType.MOSTLY_IQ1_S),
    "iq1_m": (_T.IQ1_M, LlamaFileType.MOSTLY_IQ1_M),
    "iq2_xxs": (_T.IQ2_XXS, LlamaFileType.MOSTLY_IQ2_XXS),
    "iq2_xs": (_T.IQ2_XS, LlamaFileType.MOSTLY_IQ2_XS),
    "iq2_s": (_T.IQ2_S, LlamaFileType.MOSTLY_IQ2_S),
    "iq3_xxs": (_T.IQ3_XXS, LlamaFileType.MOSTLY_IQ3_XXS),
    "iq3_s": (_T.IQ3_S, LlamaFileType.MOSTLY_IQ3_S),
    "tq1_0": (_T.TQ1_0, LlamaFileType.MOSTLY_TQ1_0),
    "tq2_0": (_T.TQ2_0, LlamaFileType.MOSTLY_TQ2_0),
}
_MIX = "q4_k_m"
QUANTS = (*_PLAIN, _MIX)
"""Plain types, used for every matrix, and one mix as in published files."""

# llama.cpp's types for rows whose length is not a multiple of 256.
_FALLBACK = {
    _T.Q2_K: _T.IQ4_NL,
    _T.Q3_K: _T.IQ4_NL,
    _T.IQ4_XS: _T.IQ4_NL,
    _T.IQ1_S: _T.IQ4_NL,
    _T.IQ1_M: _T.IQ4_NL,
    _T.IQ2_XXS: _T.IQ4_NL,
    _T.IQ2_XS: _T.IQ4_NL,
    _T.IQ2_S: _T.IQ4_NL,
    _T.IQ3_XXS: _T.IQ4_NL,
    _T.IQ3_S: _T.IQ4_NL,
    _T.TQ1_0: _T.Q4_0,
    _T.TQ2_0: _T.Q4_0,
    _T.Q4_K: _T.Q5_0,
    _T.Q5_K: _T.Q5_1,
    _T.Q6_K: _T.Q8_0,
}


def type_for(tensor: Tensor, quant: str) -> GGMLQuantizationType:
    """The type of a tensor under `quant`, one of QUANTS.

    Vectors, biases, the router and the weights of an indexer's heads are always F32. In the mix, down-projections and
    the output are Q6_K and the rest is Q4_K; tensors whose rows do not fit these are Q8_0.
    """
    if tensor.below:
        return _T.I32
    if len(tensor.shape) == 1 or tensor.is_exact or tensor.is_added:
        return _T.F32
    if quant == _MIX:
        is_down = tensor.part_of is not None and "down" in tensor.part_of.parts
        preferred = _T.Q6_K if is_down or tensor.group == "output" else _T.Q4_K
        return preferred if _fits(preferred, tensor.cols) else _T.Q8_0
    return fitting_type(_PLAIN[quant][0], tensor.cols)


def types_for(spec: ModelSpec, quant: str) -> dict[str, GGMLQuantizationType]:
    """Name → type of every tensor of a model under `quant`."""
    return {name: type_for(tensor, quant) for name, tensor in expected_tensors(spec).items()}


def fitting_type(preferred: GGMLQuantizationType, cols: int) -> GGMLQuantizationType:
    """`preferred`, or llama.cpp's replacement if rows of `cols` weights are not a multiple of its block."""
    fallback = preferred if _fits(preferred, cols) else _FALLBACK.get(preferred, _T.F16)
    return fallback if _fits(fallback, cols) else _T.F16


def file_type(quant: str) -> LlamaFileType:
    """`general.file_type`."""
    return LlamaFileType.MOSTLY_Q4_K_M if quant == _MIX else _PLAIN[quant][1]


def check_quant(quant: str) -> None:
    """Raises ConfigError for a name that is not one of QUANTS."""
    if quant not in QUANTS:
        raise ConfigError("quant", quant, f"expected one of {', '.join(QUANTS)}")


def _fits(ggml_type: GGMLQuantizationType, cols: int) -> bool:
    return cols % GGML_QUANT_SIZES[ggml_type][0] == 0
