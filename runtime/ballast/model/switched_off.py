"""Ways of computing on a GPU that a model does without, and why."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal, get_args

log = logging.getLogger(__name__)

Feature = Literal[
    "streamed_experts",
    "gpu_experts",
    "gpu_experts_update",
    "pcie_share",
    "exact_codes",
    "flashinfer",
    "expanded_attention",
    "divided_attention",
]
FEATURES: tuple[Feature, ...] = get_args(Feature)
_MESSAGES: Mapping[Feature, str] = {
    "streamed_experts": "expert streaming is disabled: the CPU computes long steps",
    "gpu_experts": "experts in GPU memory are disabled",
    "gpu_experts_update": "experts in GPU memory do not follow use",
    "pcie_share": "reading experts across PCIe in decode steps is disabled",
    "exact_codes": "exact-integer GEMM is disabled for all dense layers",
    "flashinfer": "attention uses Ballast's kernels, which are slower",
    "expanded_attention": "attention of long prompts stays in the latent space, which is slower",
    "divided_attention": "one GPU computes attention of a long prompt's layer, which is slower",
}


class SwitchedOff:
    """Features that the start of one model has switched off because they failed a check or are not available here.

    Features that are off because they measured slower are not included. Each entry is also logged as a warning and can
    be queried, so that users need not guess it from a slow server."""

    def __init__(self) -> None:
        self._reasons: dict[Feature, str] = {}

    def add(self, feature: Feature, reason: str) -> None:
        """Only the first reason counts: later ones follow from it."""
        if feature not in self._reasons:
            self._reasons[feature] = reason
            log.warning(_MESSAGES[feature], extra={"switched_off": feature, "reason": reason})

    @property
    def reasons(self) -> Mapping[Feature, str]:
        """One for each feature that is switched off."""
        return self._reasons
