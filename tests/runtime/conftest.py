"""Models for tests of the server."""

import functools
import os
from pathlib import Path

import pytest

from ballast.tiny import weights, write_tiny_model

NUM_TENSORS = 128
"""More than a tiny model has."""

# Each client of httpx reads the certificates of every authority, which takes 20 ms; no test asks a host outside.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parents[1] / "support/servers/one_authority.pem")


@pytest.fixture(scope="session")
def noise(tmp_path_factory):
    """Options of `ballast serve` for a model with random weights. Its replies rarely end, and differ for every seed."""
    return ("--gguf_path", str(write_tiny_model(tmp_path_factory.mktemp("noise")).gguf))


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Writes each tiny model once; tests only read them."""
    # Drawing numbers takes a third of the time, and a model in other types has those of the one before.
    drawn = functools.lru_cache(NUM_TENSORS)(weights._normal)

    @functools.cache
    def write(**arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(weights, "_normal", drawn)
            return write_tiny_model(tmp_path_factory.mktemp("written"), **arguments)

    defaults = {"arch": "v3", "mla": "split", "quant": "q4_k"}
    return lambda **arguments: write(**defaults | arguments)
