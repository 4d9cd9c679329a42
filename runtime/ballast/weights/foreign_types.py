"""Tensor types of GGUF files that Ballast does not support, by number, for error messages."""

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
    151: "Q8_KV",
    152: "IQ5_KS",
    153: "IQ2_KT",
    154: "IQ3_KT",
    155: "IQ4_KT",
    156: "IQ3_KS",
    157: "IQ2_KL",
    158: "IQ1_KT",
}
"""Types of ik_llama.cpp's quantiser."""

_NEWEST: Mapping[int, tuple[str, str]] = {42: ("Q2_0", "TQ2_0 or Q2_K"), 43: ("F8_E4M3", "Q8_0 or BF16")}
"""Types of llama.cpp that cannot be read here yet, and the types to use instead."""

_REPACKED = range(200, 400)
"""ik_llama.cpp's numbers for types with interleaved rows."""


_GIVEN_UP: Mapping[int, tuple[str, str]] = {
    4: ("Q4_2", "Q4_0"),
    5: ("Q4_3", "Q4_1"),
    31: ("Q4_0_4_4", "Q4_0"),
    32: ("Q4_0_4_8", "Q4_0"),
    33: ("Q4_0_8_8", "Q4_0"),
    36: ("IQ4_NL_4_4", "IQ4_NL"),
    37: ("IQ4_NL_4_8", "IQ4_NL"),
    38: ("IQ4_NL_8_8", "IQ4_NL"),
}
"""Removed types of llama.cpp, most of them with rows interleaved for Arm, and the type to use instead."""


def why_unknown(number: int) -> str:
    """Why a tensor with this type number is rejected, and what to do."""
    if number in _GIVEN_UP:
        name, other = _GIVEN_UP[number]
        return f"type {name} (number {number}) was removed from llama.cpp; use a file of {other}"
    if number in _NEWEST:
        name, other = _NEWEST[number]
        return f"type {name} (number {number}) of llama.cpp is not supported yet; use a file of {other}"
    if number in IK_LLAMA_TYPES:
        whose = f"type {IK_LLAMA_TYPES[number]} (number {number}) is ik_llama.cpp's own"
    elif number in _REPACKED:
        whose = f"type number {number} is one of ik_llama.cpp's own, of interleaved rows"
    else:
        return f"unknown type number {number}; it may be newer than this version of Ballast, or the file is damaged"
    return f"{whose}, which only that program reads; use a file with llama.cpp's types"
