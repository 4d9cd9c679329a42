"""YaRN keys that files omit, and keys that scale positions in other ways."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Glm4MoeConfig, Qwen3MoeConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ballast.errors import ModelError
from ballast.model.metadata import read_spec
from ballast.model.rope import inverse_frequencies, softmax_scale
from ballast.model.spec import ModelSpec
from ballast.weights.gguf import open_gguf
from devkit.models.gguf_files import write_model
from devkit.models.specs.deepseek import V3_SPEC
from devkit.models.specs.glm import GLM_DSA_SPEC, GLM_SPEC
from devkit.models.specs.qwen3 import QWEN3_SPEC

PUBLISHED = {"type": "yarn", "factor": 4.0, "original_context_length": 32768}
"""The keys of published Qwen3 files with a context of 128K."""


def spec_of(folder: Path, spec: ModelSpec, **scaling: Any) -> ModelSpec:
    """The spec of a file with only these `rope.scaling.*` keys."""
    plain = dict.fromkeys(
        ("type", "factor", "original_context_length", "yarn_beta_fast", "yarn_beta_slow", "yarn_log_multiplier")
    )
    keys = {f"{spec.architecture.name}.rope.scaling.{key}": value for key, value in (plain | scaling).items()}
    return read_spec(open_gguf(write_model(folder / "m.gguf", spec, metadata=keys)))


@pytest.mark.parametrize(
    ("spec", "config_class"), [(QWEN3_SPEC, Qwen3MoeConfig), (GLM_SPEC, Glm4MoeConfig)], ids=["qwen3moe", "glm4moe"]
)
@pytest.mark.parametrize(
    ("more", "in_config"),
    [
        ({}, {}),
        ({"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}, {"beta_fast": 16.0, "beta_slow": 2.0}),
        ({"yarn_attn_factor": 0.75}, {"attention_factor": 0.75}),
    ],
    ids=["type, factor and original length", "betas", "attention factor"],
)
def test_yarn_is_that_of_transformers(
    tmp_path: Path, spec: ModelSpec, config_class: type[Any], more: dict[str, float], in_config: dict[str, float]
) -> None:
    found = spec_of(tmp_path, spec, **(PUBLISHED | more))
    assert found.rope.yarn is not None
    rope = {
        "rope_type": "yarn",
        "rope_theta": found.rope.theta,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "partial_rotary_factor": found.rope.dim / spec.layers[0].mixer.query_dim,
    }
    config = config_class(
        head_dim=spec.layers[0].mixer.query_dim, max_position_embeddings=131072, rope_parameters=rope | in_config
    )
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](config, device=None)
    assert inverse_frequencies(found.rope) == pytest.approx(np.asarray(frequencies, np.float64), rel=1e-5)
    assert found.rope.yarn.attention_factor == pytest.approx(attention_factor, rel=1e-6)
    assert softmax_scale(found.layers[0].mixer) == pytest.approx(1 / math.sqrt(spec.layers[0].mixer.query_dim))


def test_cos_and_sin_are_scaled_by_the_published_formula_by_default(tmp_path: Path) -> None:
    found = spec_of(tmp_path, QWEN3_SPEC, **PUBLISHED)
    assert found.rope.yarn is not None
    assert found.rope.yarn.attention_factor == pytest.approx(1.1386294361)  # 0.1 * ln(4) + 1
    assert (found.rope.yarn.beta_fast, found.rope.yarn.beta_slow, found.rope.yarn.mscale_all_dim) == (32.0, 1.0, 0.0)


def test_a_sparse_glm_has_the_same_defaults(tmp_path: Path) -> None:
    found = spec_of(tmp_path, GLM_DSA_SPEC, **PUBLISHED).rope.yarn
    assert found is not None
    assert (found.beta_fast, found.beta_slow, found.mscale_all_dim) == (32.0, 1.0, 0.0)


@pytest.mark.parametrize(
    "scaling",
    [
        {},
        {"factor": 1.0},
        {"factor": 0.0},
        {"type": "none", "factor": 4.0},
        {"type": "linear"},
        {"type": "linear", "factor": 1.0},
        {"attn_factor": 1.0, "alpha": 0.0, "yarn_ext_factor": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("spec", [QWEN3_SPEC, V3_SPEC], ids=["qwen3moe", "deepseek2"])
def test_keys_that_scale_nothing_are_accepted(tmp_path: Path, spec: ModelSpec, scaling: dict[str, Any]) -> None:
    assert spec_of(tmp_path, spec, **scaling).rope.yarn is None


@pytest.mark.parametrize(
    ("scaling", "reported"),
    [
        ({"factor": 4.0}, r"rope\.scaling\.factor=4\.0; expected 1, or rope\.scaling\.type yarn: linear scaling"),
        ({"type": "linear", "factor": 2.0}, r"rope\.scaling\.factor=2\.0; expected 1, or .* linear scaling"),
        ({"attn_factor": 1.2}, r"rope\.scaling\.attn_factor=1\.2\d*; expected 1; other values are not supported"),
        (PUBLISHED | {"attn_factor": 0.5}, r"rope\.scaling\.attn_factor=0\.5; expected 1"),
        (PUBLISHED | {"yarn_ext_factor": 0.5}, r"rope\.scaling\.yarn_ext_factor=0\.5; expected 1 or -1"),
        ({"alpha": 1000.0}, r"rope\.scaling\.alpha=1000\.0; expected 0"),
        ({"type": "longrope"}, r"rope\.scaling\.type=longrope; expected yarn or none"),
    ],
    ids=str,
)
@pytest.mark.parametrize("spec", [QWEN3_SPEC, V3_SPEC], ids=["qwen3moe", "deepseek2"])
def test_other_scaling_is_refused_by_its_key(
    tmp_path: Path, spec: ModelSpec, scaling: dict[str, Any], reported: str
) -> None:
    with pytest.raises(ModelError, match=reported):
        spec_of(tmp_path, spec, **scaling)


def test_the_old_key_of_linear_scaling_is_refused(tmp_path: Path) -> None:
    for value, is_refused in ((1.0, False), (2.0, True)):
        keys = {"qwen3moe.rope.scale_linear": value}
        gguf = open_gguf(write_model(tmp_path / "m.gguf", QWEN3_SPEC, metadata=keys))
        if is_refused:
            with pytest.raises(ModelError, match=r"rope\.scale_linear=2\.0; expected 1, or"):
                read_spec(gguf)
        else:
            assert read_spec(gguf).rope.yarn is None


def test_grouped_attention_has_no_corrected_softmax(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"yarn_log_multiplier=0\.1\d*; expected 0: only latent attention"):
        spec_of(tmp_path, QWEN3_SPEC, **PUBLISHED, yarn_log_multiplier=0.1)
