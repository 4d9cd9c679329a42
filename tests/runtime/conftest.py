"""Models for tests of the server."""

import pytest

from ballast.tiny import write_tiny_model


@pytest.fixture(scope="session")
def noise(tmp_path_factory):
    """Options of `ballast serve` for a model with random weights. Its replies rarely end, and differ for every seed."""
    return ("--gguf_path", str(write_tiny_model(tmp_path_factory.mktemp("noise")).gguf))
