"""How unequally tokens use the experts of a layer, and what experts in a GPU's memory gain by following use. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast.errors import ConfigError

_STEEPEST = 64.0
"""Exponent of a power law under which practically only the first experts are used."""
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class ExpertSkew:
    """The `num_hot` most used experts of each layer get `share`, 0…1, of the uses."""

    num_hot: int
    share: float


@dataclass(frozen=True, slots=True)
class ReadExperts:
    """The experts of a step as fractions of all experts: those that it reads in each memory."""

    on_host: float
    on_gpu: float
    host_uses: float
    """The fraction of the uses, rather than of the experts, that are in host memory."""


class ExpertUse:
    """How often tokens select each expert of a layer: by a power law of the rank, at most once per token."""

    def __init__(self, skew: ExpertSkew, num_experts: int, num_used: int) -> None:
        """A token selects `num_used` of a layer's `num_experts` experts. Raises ConfigError for a skew that they cannot
        have."""
        least, most = skew.num_hot / num_experts, min(1.0, skew.num_hot / num_used)
        shown = f"{skew.num_hot}:{skew.share:g}"
        if skew.num_hot >= num_experts:
            raise ConfigError("hot_experts", shown, f"a layer has {num_experts} experts; name fewer")
        if not least <= skew.share <= most:
            problem = f"{skew.num_hot} of {num_experts} experts get between {least:.3g} and {most:.3g} of the uses"
            raise ConfigError("hot_experts", shown, f"{problem}, because a token selects {num_used} different ones")
        low, high = 0.0, _STEEPEST
        for _ in range(_HALVINGS):
            exponent = (low + high) / 2
            rates = _rates(exponent, num_experts, num_used)
            if rates[: skew.num_hot].sum() < skew.share * num_used:
                low = exponent
            else:
                high = exponent
        self.rates = _rates(high, num_experts, num_used)
        """[E]: the fraction of tokens that select each expert, the most used first."""

    def read(self, num_tokens: int, gpu_share: float, *, follows: bool) -> ReadExperts:
        """The expected experts of a step of `num_tokens` tokens. A GPU's memory holds `gpu_share` of each layer's
        experts: the most used ones if it `follows` use, otherwise any."""
        selected = (1.0 - (1.0 - self.rates) ** num_tokens) / len(self.rates)
        uses = self.rates / self.rates.sum()
        if not follows:
            return ReadExperts(
                float(selected.sum()) * (1 - gpu_share), float(selected.sum()) * gpu_share, 1 - gpu_share
            )
        on_gpu = _first(selected, gpu_share)
        return ReadExperts(float(selected.sum()) - on_gpu, on_gpu, 1.0 - _first(uses, gpu_share))


def read_skew(option: str, text: str) -> ExpertSkew:
    """A skew such as 32:0.5. Raises ConfigError."""
    found = re.fullmatch(r"([1-9]\d{0,5}):(0?\.\d{1,9}|1(?:\.0{0,9})?)", text)
    if found is None:
        raise ConfigError(option, text, "expected experts of a layer and their share of the uses, such as 32:0.5")
    return ExpertSkew(int(found[1]), float(found[2]))


def _rates(exponent: float, num_experts: int, num_used: int) -> NDArray[np.float64]:
    """Rates in proportion to rank ** -exponent, but at most 1, whose sum is `num_used`."""
    law = np.arange(1, num_experts + 1, dtype=np.float64) ** -exponent
    rates = np.ones(num_experts)
    for num_always in range(num_used):  # the first experts are selected by all tokens
        rest = law[num_always:]
        rates[num_always:] = rest * ((num_used - num_always) / rest.sum())
        if rates[num_always] <= 1.0:
            break
        rates[num_always] = 1.0
    return rates


def _first(values: NDArray[np.float64], share: float) -> float:
    """The sum of the first `share` of the values."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return float(np.interp(share * len(values), np.arange(len(sums)), sums))
