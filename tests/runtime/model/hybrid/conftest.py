from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ballast.model.hybrid.experts import expert_cache
from ballast.moe.expert_moves import Move
from devkit.models import cpu_platform as cpu_platform  # what is on the CPU has a platform
from devkit.models.simulated_devices import SimulatedDevices


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Torch's threads do not pay for tiny matrices."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def simulated() -> Iterator[SimulatedDevices]:
    with SimulatedDevices() as mode:
        yield mode


@pytest.fixture
def experts_move_randomly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchange random experts of every layer during every step."""
    rng = np.random.default_rng(0)

    def choose(heat: np.ndarray, slots: np.ndarray, most: int) -> list[Move]:
        moves = []
        for layer, row in enumerate(slots):
            inside, outside = rng.permutation(np.flatnonzero(row >= 0)), rng.permutation(np.flatnonzero(row < 0))
            pairs = zip(inside[:2].tolist(), outside[:2].tolist(), strict=False)
            moves += [Move(layer, int(row[evicted]), evicted, admitted) for evicted, admitted in pairs]
        return moves[:most]

    monkeypatch.setattr(expert_cache, "choose_moves", choose)
    monkeypatch.setattr(expert_cache, "OBSERVED_STEPS", 1)
