"""Kernels that may still be compiling when the model starts to serve; other kernels compute until then."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from ballast.errors import first_line
from ballast.model.hybrid.compiling.compiled_aside import CompiledAside
from ballast.model.hybrid.faults.device_errors import DEVICE_ERRORS, is_full

log = logging.getLogger(__name__)


class LateKernels:
    """Callbacks that make a model use kernels. Each is called once its kernels are compiled, in the order of `add`."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[CompiledAside, Callable[[], None]]] = deque()

    def add(self, compiled: CompiledAside, use: Callable[[], None]) -> None:
        """Register `use`, which `use_compiled` calls once `compiled` has ended, with or without an error."""
        self._waiting.append((compiled, use))

    @property
    def waiting(self) -> list[str]:
        """Names of the kernels that are not in use yet."""
        return [compiled.name for compiled, _ in self._waiting]

    def use_compiled(self, *, waits: bool = False) -> None:
        """Use the kernels that are compiled by now, or with `waits` all of them. No step that they compute may have
        begun. If the device has too little memory for a kernel, it is not used, unless `waits` is set: a start plans
        with this memory. Other errors of the callbacks are raised."""
        while self._waiting and (waits or self._waiting[0][0].is_done):
            compiled, use = self._waiting.popleft()
            begin = time.monotonic()
            try:
                use()
            except DEVICE_ERRORS as error:
                if waits or not is_full(error):
                    raise
                why = {"kernels": compiled.name, "why": first_line(error)}
                log.warning("kernels are not used: the device has too little memory", extra=why)
                continue
            extra = {"kernels": compiled.name, "seconds": round(time.monotonic() - begin, 2)}
            log.info("kernels in use", extra=extra)
