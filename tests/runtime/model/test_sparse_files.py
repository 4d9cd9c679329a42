"""Files with sparse attention: optional keys, and rejected values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ballast.engine.request import Request, SamplingParams
from ballast.errors import ModelError
from ballast.weights.gguf import open_gguf
from devkit.generate import generate
from devkit.models.gguf_files import Tensors, copy_model
from devkit.models.small_core import core_of
from devkit.models.written import write_tiny_model


def with_zero_biases(tensors: Tensors) -> Tensors:
    return {
        name: (np.zeros_like(data) if "exp_probs_b" in name else data, kind) for name, (data, kind) in tensors.items()
    }


def without_biases(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if "exp_probs_b" not in name}


def text_of(path: Path) -> list[tuple[int, ...]]:
    requests = [
        Request(str(i), tuple(range(5 * i, 5 * i + 20)), SamplingParams(max_tokens=12, temperature=0.0))
        for i in range(4)
    ]
    return [tuple(result.token_ids) for result in generate(core_of(path), requests)]


@pytest.mark.parametrize("arch", ["v32", "glm5"])
def test_a_router_without_biases_is_one_with_zeros(tmp_path: Path, arch: str) -> None:
    whole = write_tiny_model(tmp_path, arch=arch, quant="q8_0").gguf
    zeros = copy_model(whole, tmp_path / "zeros.gguf", with_zero_biases)
    none = copy_model(whole, tmp_path / "none.gguf", without_biases)
    assert text_of(none) == text_of(zeros) != text_of(whole)


def test_a_bias_that_one_layer_lacks_is_missing(tmp_path: Path) -> None:
    whole = write_tiny_model(tmp_path, arch="v32", quant="q8_0").gguf
    names = [name for name in open_gguf(whole).tensors if "exp_probs_b" in name]
    some = copy_model(
        whole, tmp_path / "some.gguf", lambda tensors: {k: v for k, v in tensors.items() if k != names[-1]}
    )
    with pytest.raises(ModelError, match=f"{names[-1]}: is missing"):
        core_of(some)
