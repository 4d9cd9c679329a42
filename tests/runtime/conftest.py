"""Models for tests of the server."""

import os
from pathlib import Path

import pytest

from devkit.models import written as tiny_models
from devkit.models.written import MakeTiny, write_tiny_model

# Each httpx client loads the certificates of all authorities, which takes 20 ms; no test uses an external host.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parents[2] / "devkit/servers/one_authority.pem")


@pytest.fixture(scope="session", autouse=True)
def shared_tiny_models(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Workers share one folder of tiny models per test run."""
    base = tmp_path_factory.getbasetemp()
    tiny_models.share((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tiny-models")


@pytest.fixture(scope="session")
def noise(tmp_path_factory):
    """Options of `ballast serve` for a model with random weights. Its replies rarely end, and differ for every seed."""
    return ("--gguf_path", str(write_tiny_model(tmp_path_factory.mktemp("noise")).gguf))


@pytest.fixture(scope="session")
def written() -> MakeTiny:
    """Tiny models; tests only read them."""
    return tiny_models.tiny_model
