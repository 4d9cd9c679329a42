"""Reads the first bytes of a GGUF file: whether they hold its whole header, and single texts in it. Pure."""

from __future__ import annotations

import struct

_ITEM_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Sizes of GGUF's value types. 8 is a string, 9 an array."""
_STRING, _ARRAY = 8, 9


def is_whole(head: bytes) -> bool:
    """Whether the first bytes of a file contain its whole GGUF header. Also true for other files, because more bytes
    would not help; the reader rejects them."""
    if not head.startswith(b"GGUF") and len(head) >= 4:
        return True
    try:
        num_tensors, num_keys = struct.unpack_from("<QQ", head, 8)
        at = 24
        for _ in range(num_keys):
            at = _after_string(head, at)
            at = _after_value(head, at + 4, struct.unpack_from("<I", head, at)[0])
        for _ in range(num_tensors):
            at = _after_string(head, at)
            at += 4 + 8 * struct.unpack_from("<I", head, at)[0] + 12
    except struct.error:
        return False
    except KeyError:
        return True
    return at <= len(head)


def texts(head: bytes, *keys: str) -> dict[str, str]:
    """The values of `keys` that are strings and within the first bytes of a file."""
    found: dict[str, str] = {}
    wanted = {key.encode(): key for key in keys}
    try:
        (num_keys,) = struct.unpack_from("<Q", head, 16)
        at = 24
        for _ in range(num_keys):
            begin, at = at + 8, _after_string(head, at)
            key, kind = wanted.get(head[begin:at]), struct.unpack_from("<I", head, at)[0]
            value, at = at + 12, _after_value(head, at + 4, kind)
            if key is not None and kind == _STRING and at <= len(head):
                found[key] = head[value:at].decode(errors="replace")
            if len(found) == len(keys):
                break
    except (struct.error, KeyError):
        pass  # truncated or damaged: the values found so far are valid
    return found


def _after_string(head: bytes, at: int) -> int:
    return at + 8 + int(struct.unpack_from("<Q", head, at)[0])


def _after_value(head: bytes, at: int, kind: int) -> int:
    if kind == _STRING:
        return _after_string(head, at)
    if kind != _ARRAY:
        return at + _ITEM_BYTES[kind]
    item, count = struct.unpack_from("<IQ", head, at)
    at += 12
    if item != _STRING:
        return at + _ITEM_BYTES[item] * int(count)
    for _ in range(count):
        at = _after_string(head, at)
    return at
