"""Heads in a file of a tier on disk: one of a fixed size for each place, with a checksum at its end."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels

PAGE_BYTES = 4096


def stride_of(num_bytes: int) -> int:
    """Bytes between two contents in a file: whole pages."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


def read_heads(file: int, of_type: np.dtype[np.void], num_places: int, num_contents: int) -> NDArray[np.void]:
    """[num_places + 1], by place from 1, zeros where there is nothing whole or no content. The file is cut or grown to
    what is asked for. `of_type` begins with `write`, 0 for an empty place, and ends with `sum`."""
    heads = np.zeros(num_places + 1, of_type)
    data = bytearray(heads.nbytes)
    view = memoryview(data)
    begin = 0
    while begin < len(data) and (count := os.preadv(file, [view[begin:]], begin)):
        begin += count
    found = np.frombuffer(data, of_type, count=begin // of_type.itemsize)
    heads[: len(found)] = found
    is_whole = heads["write"] > 0
    is_whole[0] = False
    is_whole[num_contents + 1 :] = False
    for place in np.flatnonzero(is_whole).tolist():
        is_whole[place] = int(heads["sum"][place]) == sum_of(heads[place : place + 1])
    heads[~is_whole] = np.zeros(1, of_type)
    os.ftruncate(file, heads.nbytes)
    return heads


def sum_of(head: NDArray[np.void]) -> int:
    """Checksum of one head [1] without its last field."""
    data = np.frombuffer(head.tobytes(), np.uint8)
    return int(kernels.checksum(data[:-8].copy()))


def num_contents(file: int, num_bytes: int) -> int:
    """Contents of `num_bytes` that a file is long enough for."""
    stride = stride_of(num_bytes)
    return (os.fstat(file).st_size + stride - num_bytes) // stride


def read_content(file: int, place: int, content: NDArray[np.uint8]) -> bool:
    """Fill `content` from a place; False where the file ends before. Raises OSError."""
    view, begin = content.data, (place - 1) * stride_of(content.nbytes)
    while view.nbytes:
        count = os.preadv(file, [view], begin)
        if count == 0:
            return False
        begin, view = begin + count, view[count:]
    return True


def write_content(file: int, place: int, content: NDArray[np.uint8]) -> None:
    """Write the content of a place. Raises OSError."""
    write_all(file, content.data, (place - 1) * stride_of(content.nbytes))


def write_all(file: int, data: bytes | memoryview, begin: int) -> None:
    """Write bytes at a position. Raises OSError."""
    view = memoryview(data)
    while view.nbytes:
        count = os.pwrite(file, view, begin)
        begin, view = begin + count, view[count:]
