"""KTransformers' names for kernels, classes and options in placement rules, and what is done instead of each."""

from __future__ import annotations

from collections.abc import Mapping

_KERNEL_NOTE = "kernels follow the device and the file's own quantisation, nothing is re-quantised"
_ISA_NOTE = "the CPU kernels read the types of the file"
BACKENDS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "KLinearMarlin",
            "VLinearMarlin",
            "KLinearTorch",
            "KLinearCPUInfer",
            "KLinearFP8",
            "KLinearQ8",
            "KLinearIPEXLLM",
            "KExpertsCPU",
            "KExpertsTorch",
            "KExpertsMarlin",
        ),
        _KERNEL_NOTE,
    ),
    **dict.fromkeys(("llamafile", "AMXInt4", "AMXInt8", "AMXBF16"), _ISA_NOTE),
}
"""KTransformers' kernels → what is done instead."""

CLASSES = frozenset(
    {
        "default",
        "KTransformersLinear",
        "KTransformersExperts",
        "KTransformersExpertsV2",
        "KDeepseekV2MoE",
        "KDeepseekV3MoE",
        "KDeepseekV3MoEV2",
        "KMoEGate",
        "KMoEGateDeepSeekV3",
        "KMoEGateIPEXLLM",
        "KDeepseekV2Attention",
        "KDeepseekV3Attention",
        "flashinfer_attn",
        "KDeepseekV2Model",
        "RotaryEmbedding",
        "RotaryEmbeddingV2",
        "RotaryEmbeddingV3",
        "RotaryEmbeddingV4",
        "YarnRotaryEmbedding",
        "YarnRotaryEmbeddingV2",
        "YarnRotaryEmbeddingV3",
        "RMSNorm",
        "KDeepseekRMSNormIPEXLLM",
        "kDeepseekV3MLP",
        "KDeepseekV3MLP",
        "KDeepseekV2MLP",
    }
)
"""Last parts of the import paths that `replace.class` may name. Ballast keeps its own implementation for each."""

BACKEND_KEYS = ("generate_op", "prefill_op", "backend")
"""Keys of `replace.kwargs` that name a kernel."""
IGNORED_KEYS: Mapping[str, str] = {
    "prefill_device": "a module's prefill runs where its decode runs",
    "out_device": "results go where they are used next",
    "absorb_for_prefill": "attention is absorbed in prefill too",
    "transfer_map": "hidden states follow the devices of the layers",
    "per_layer_prefill_intput_threshold": "the length of a prefill step is chunk_size",
}
"""Keys of `replace.kwargs` that are accepted → what is done instead."""
