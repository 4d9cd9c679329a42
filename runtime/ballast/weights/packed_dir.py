"""Opens a folder of packed weights for one model: an existing set, or a new one if there is space."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from ballast.host.filesystem import read_file_system
from ballast.host.sizes import human
from ballast.weights.gguf import GgufModel
from ballast.weights.packed_key import packed_key
from ballast.weights.packed_panels import PackedPanels
from ballast.weights.packed_set import Manifest, PackedError, PackedSet, reason, remove_unused

log = logging.getLogger(__name__)

MAX_UNIT_BYTES = 2 << 20
"""Every matrix has its own file, so larger pages would be mostly empty."""
_LOOK_S, _LOOK_AGAIN_S = 1.0, 0.02
"""Timeout and interval for acquiring a lock: a plan briefly takes each lock to see whether it is free."""


def open_packed_dir(
    folder: Path,
    gguf: GgufModel,
    isa: str,
    threads_per_node: Sequence[int],
    tensors: Collection[str],
    needed_bytes: Callable[[int], int],
) -> PackedPanels | None:
    """The packed weights of these `tensors` of the model in `folder`, or files for new ones. `needed_bytes` returns
    their size, rounded up to multiples of its argument. Returns None, and logs a warning with the reason, if they can
    be neither used nor kept. Sets that no process uses are removed."""
    if isa == "reference":
        why = "the instruction set reference computes from the model's file, and packs nothing"
        log.warning("packed_dir is not used", extra={"folder": str(folder), "why": why})
        return None
    folder = folder.absolute()
    try:
        return _open(folder, packed_key(gguf, isa, threads_per_node, tensors), needed_bytes)
    except (OSError, PackedError) as error:
        log.warning("packed_dir is not used", extra={"folder": str(folder), "why": reason(error, folder)})
        return None


def _open(folder: Path, key: str, needed_bytes: Callable[[int], int]) -> PackedPanels:
    folder.mkdir(mode=0o700, exist_ok=True)
    for problem in remove_unused(folder, key):
        log.warning("stale packed weights cannot be removed", extra={"why": problem})
    files = read_file_system(folder)
    if files.unit_bytes > MAX_UNIT_BYTES:
        size = human(files.unit_bytes)
        raise PackedError(f"{folder}: its files take pages of {size}; mount it with pagesize=2M")
    kept = PackedSet(folder, key)
    try:
        return PackedPanels(kept, files, _locked(kept, needed_bytes(files.unit_bytes)))
    except OSError as error:
        kept.close()
        raise PackedError(reason(error, kept.path)) from error
    except BaseException:
        kept.close()
        raise


def _locked(kept: PackedSet, needed_bytes: int) -> Manifest | None:
    """Lock the set: for reading if it is finished, otherwise for writing after clearing it."""
    give_up_s = time.monotonic() + _LOOK_S
    while True:
        if kept.lock(shared=True):
            with suppress(PackedError):  # if two processes find it damaged, one gets to write
                manifest = kept.manifest()
                if manifest is not None:
                    return manifest
        if kept.lock(shared=False):
            break
        if time.monotonic() > give_up_s:
            raise PackedError(f"{kept.path}: another process writes or uses it")
        time.sleep(_LOOK_AGAIN_S)
    try:
        manifest = kept.manifest()
        if manifest is not None:
            kept.lock(shared=True)
            return manifest
    except PackedError as error:
        log.warning("packed weights cannot be used", extra={"why": str(error), "instead": "packed again"})
    kept.clear()
    free_bytes = read_file_system(kept.path).free_bytes
    if free_bytes < needed_bytes:
        raise PackedError(f"{kept.path}: {human(needed_bytes)} needed, {human(free_bytes)} are free there")
    return None
