"""The first statement of kernels that a GPU may launch before the kernel in front of them has ended.

NVIDIA calls this programmatic dependent launch (CUDA C++ Programming Guide, "Programmatic Dependent Launch and
Synchronization"). It hides most of the time between two kernels. A kernel that is launched early must wait before it
reads or writes memory, even memory that the kernel in front does not use: only then is everything before it done. After
that it may let the next kernel be launched immediately, because that one waits until this one has ended.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.platforms.cuda_platform import EARLY_CAPABILITY

_CAPABILITY: tl.constexpr = tl.constexpr(EARLY_CAPABILITY)


@triton.jit
def wait_for_previous():
    """Wait until the kernel in front has ended, if this one was launched early; then let the next one be launched."""
    if tl.target_info.cuda_capability_geq(_CAPABILITY):
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
