"""The byte-level alphabet, in which a BPE vocabulary writes each of the 256 bytes as one printable character.

Source: GPT-2's encoder (openai/gpt-2). Printable bytes stand for themselves; the other 68 are numbered
from U+0100 in order.
"""

from __future__ import annotations


def _characters() -> dict[int, str]:
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{byte: chr(byte) for byte in printable},
        **{byte: chr(0x100 + n) for n, byte in enumerate(others)},
    }


CHAR_OF_BYTE = _characters()
BYTE_OF_CHAR = {char: byte for byte, char in CHAR_OF_BYTE.items()}


def to_bytes(token: str) -> bytes | None:
    """The bytes of a vocabulary entry; None when the entry is not written in the alphabet."""
    try:
        return bytes([BYTE_OF_CHAR[char] for char in token])
    except KeyError:
        return None
