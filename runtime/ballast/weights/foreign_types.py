"""Tensor types of GGUF files that are not llama.cpp's: known by number, so that a refusal can say whose they are."""

from __future__ import annotations

from collections.abc import Mapping

IK_LLAMA_TYPES: Mapping[int, str] = {
    133: "Q6_0",
    134: "IQ1_BN",
    135: "IQ2_BN",
    137: "IQ2_K",
    138: "IQ3_K",
    139: "IQ4_K",
    140: "IQ5_K",
    141: "IQ6_K",
    144: "IQ4_KS",
    145: "IQ2_KS",
    146: "IQ4_KSS",
    152: "IQ5_KS",
    153: "IQ2_KT",
    154: "IQ3_KT",
    155: "IQ4_KT",
    156: "IQ3_KS",
    157: "IQ2_KL",
    158: "IQ1_KT",
}
"""Those that ik_llama.cpp's quantiser writes."""

_REPACKED = range(200, 400)
"""ik_llama.cpp's numbers of types whose rows it has interleaved."""


def why_unknown(number: int) -> str:
    """What to say of a tensor whose type's number llama.cpp does not have."""
    if number in IK_LLAMA_TYPES:
        whose = f"type {IK_LLAMA_TYPES[number]} (number {number}) is ik_llama.cpp's own"
    elif number in _REPACKED:
        whose = f"type number {number} is one of ik_llama.cpp's own, of interleaved rows"
    else:
        return f"unknown type number {number}"
    return f"{whose}, which only that program reads; take a file of llama.cpp's types"
