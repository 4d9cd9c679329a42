"""Models for tests of the server."""

import functools
import os
from pathlib import Path

import pytest

from ballast.tiny import weights, write_tiny_model
from ballast.tiny.model import rows_for, write_model
from ballast.tiny.shape import PRESETS
from ballast.tiny.tokenizer import make_tokenizer

# Each client of httpx reads the certificates of every authority, which takes 20 ms; no test asks a host outside.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parents[2] / "devkit/servers/one_authority.pem")


@pytest.fixture(scope="session")
def noise(tmp_path_factory):
    """Options of `ballast serve` for a model with random weights. Its replies rarely end, and differ for every seed."""
    return ("--gguf_path", str(write_tiny_model(tmp_path_factory.mktemp("noise")).gguf))


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Writes each tiny model once; tests only read them."""

    # Drawing numbers takes a third of the time, and a model in other types has those of the one before.
    @functools.lru_cache(1)
    def drawn(arch):
        shape = PRESETS[arch]
        tokenizer = make_tokenizer(shape.family)
        num_tokens = tokenizer.num_tokens
        return shape, tokenizer, list(weights.tensors(shape, num_tokens, rows_for(num_tokens), seed=0))

    @functools.cache
    def write(arch, mla, quant):
        return write_model(tmp_path_factory.mktemp("written"), *drawn(arch), mla=mla, quant=quant)

    return lambda arch="v3", mla="split", quant="q4_k": write(arch, mla, quant)
