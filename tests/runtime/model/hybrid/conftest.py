from collections.abc import Iterator

import pytest
import torch

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
