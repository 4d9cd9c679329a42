"""A model may mix layers with different attention: the CPU computes each layer with its own mixer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.engine.startup.build import EngineSettings
from ballast.engine.startup.loading import load_runner
from ballast.model.batch import Batch
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.layer import Mixer
from ballast.model.metadata import read_spec
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors
from ballast.weights.gguf import open_gguf
from devkit.models.gguf_files import Tensors, copy_model
from devkit.models.written import write_tiny_model

SETTINGS = EngineSettings(
    cache_lens=128, max_batch_size=2, max_new_tokens=16, chunk_size=48, prefill_chunk_size=48, max_queue=4
)
NUM_TOKENS = 40


def logits_of(file: Path, spec: ModelSpec, isa: str) -> NDArray[np.float32]:
    """[NUM_TOKENS, vocabulary]: all tokens except the last in one step, the last one in a second step."""
    model = open_gguf(file)
    check_tensors(model, spec)
    runner = load_runner(model, spec, spec.vocab_size, replace(SETTINGS, cpu_isa=isa, activation_bytes=2))
    return np.concatenate([runner.forward(batch(*part), lambda: None) for part in ((0, 39), (39, NUM_TOKENS))])


def batch(begin: int, end: int) -> Batch:
    """Tokens begin…end-1 of a request, whose blocks come after the null block."""
    positions = np.arange(begin, end, dtype=np.int32)
    num_blocks = -(-end // SETTINGS.block_tokens)
    return Batch(
        token_ids=positions * 7 % 500 + 3,
        positions=positions,
        slots=positions + np.int32(SETTINGS.block_tokens),
        query_indptr=np.array([0, end - begin], np.int32),
        kv_indptr=np.array([0, num_blocks], np.int32),
        kv_indices=np.arange(1, num_blocks + 1, dtype=np.int32),
        sampled=np.arange(end - begin),
    )


def with_mixer(spec: ModelSpec, layer: int, mixer: Mixer) -> ModelSpec:
    layers = list(spec.layers)
    layers[layer] = replace(layers[layer], mixer=mixer)
    return replace(spec, layers=tuple(layers))


def grouped_of(spec: ModelSpec) -> GroupedSpec:
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, GroupedSpec)
    return mixer


def changed_by(change: Callable[[str, np.ndarray], np.ndarray]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: (change(name, data), kind) for name, (data, kind) in tensors.items()}


@pytest.mark.parametrize("isa", [kernels.usable_isas()[0], "reference"])
def test_a_layer_may_have_more_heads_of_keys_and_values(tmp_path: Path, isa: str) -> None:
    file = write_tiny_model(tmp_path, arch="qwen3", quant="f32").gguf
    spec = read_spec(open_gguf(file))
    mixer = grouped_of(spec)
    copies = mixer.num_heads // mixer.num_kv_heads

    def repeat(name: str, data: np.ndarray) -> np.ndarray:
        if name not in ("blk.1.attn_k.weight", "blk.1.attn_v.weight"):
            return data
        heads = data.reshape(mixer.num_kv_heads, -1, data.shape[-1])
        return np.repeat(heads, copies, axis=0).reshape(-1, data.shape[-1])

    mixed = with_mixer(spec, 1, replace(mixer, num_kv_heads=mixer.num_heads))
    repeated = copy_model(file, tmp_path / "repeated.gguf", changed_by(repeat))
    np.testing.assert_allclose(logits_of(repeated, mixed, isa), logits_of(file, spec, isa), rtol=1e-4, atol=1e-4)
    assert [sum(plane.width for plane in planes) for planes in mixed.planes] == [512, 1536, 512]


@pytest.mark.parametrize("isa", [kernels.usable_isas()[0], "reference"])
def test_layers_may_have_different_numbers_of_query_heads(tmp_path: Path, isa: str) -> None:
    file = write_tiny_model(tmp_path, arch="qwen3", quant="f32").gguf
    spec = read_spec(open_gguf(file))
    mixer = grouped_of(spec)

    def add_silent_heads(name: str, data: np.ndarray) -> np.ndarray:
        """Add a fourth head to both groups of layer 2; the output ignores its results."""
        if name == "blk.2.attn_q.weight":
            groups = data.reshape(2, 3, mixer.head_dim, -1)
            return np.concatenate([groups, groups[:, :1]], axis=1).reshape(-1, data.shape[-1])
        if name == "blk.2.attn_output.weight":
            groups = data.reshape(-1, 2, 3, mixer.v_dim)
            return np.concatenate([groups, 0 * groups[:, :, :1]], axis=2).reshape(len(data), -1)
        return data

    mixed = with_mixer(spec, 2, replace(mixer, num_heads=8))
    more = copy_model(file, tmp_path / "more.gguf", changed_by(add_silent_heads))
    np.testing.assert_allclose(logits_of(more, mixed, isa), logits_of(file, spec, isa), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", [kernels.usable_isas()[0], "reference"])
def test_layers_may_rotate_by_different_angles(tmp_path: Path, isa: str) -> None:
    def mute_others(name: str, data: np.ndarray) -> np.ndarray:
        return 0 * data if name in ("blk.0.attn_output.weight", "blk.2.attn_output.weight") else data

    file = write_tiny_model(tmp_path, arch="qwen3", quant="f32").gguf
    spec = read_spec(open_gguf(file))
    other = replace(grouped_of(spec), rope=replace(spec.rope, theta=77.0))
    all_other = replace(spec, layers=tuple(replace(layer, mixer=other) for layer in spec.layers))
    mixed = with_mixer(spec, 1, other)
    assert mixed.ropes == (spec.rope, other.rope)
    # Only the attention of layer 1 affects a logit, so the rotation of the others makes no difference.
    muted = copy_model(file, tmp_path / "muted.gguf", changed_by(mute_others))
    logits = logits_of(muted, mixed, isa)
    np.testing.assert_array_equal(logits, logits_of(muted, all_other, isa))
    assert np.abs(logits - logits_of(muted, spec, isa)).max() > 0.1


def test_layers_may_store_latent_projections_in_different_layouts(tmp_path: Path) -> None:
    split, joint = (
        write_tiny_model(tmp_path / mla, arch="v3", quant="f32", mla=mla).gguf for mla in ("split", "joint")
    )
    of_joint: Tensors = {}
    copy_model(joint, tmp_path / "unused.gguf", lambda tensors: of_joint.update(tensors) or tensors)

    def take_joint(tensors: Tensors) -> Tensors:
        """Use layer 2 of the joint file."""
        others = {name: tensor for name, tensor in tensors.items() if not name.startswith("blk.2.")}
        return others | {name: tensor for name, tensor in of_joint.items() if name.startswith("blk.2.")}

    spec = read_spec(open_gguf(split))
    mixed = with_mixer(spec, 2, read_spec(open_gguf(joint)).layers[2].mixer)
    assert len(mixed.mixers) == 2
    found = logits_of(copy_model(split, tmp_path / "mixed.gguf", take_joint), mixed, "reference")
    np.testing.assert_allclose(found, logits_of(split, spec, "reference"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", [kernels.usable_isas()[0], "reference"])
def test_latent_and_grouped_attention_share_a_model(tmp_path: Path, isa: str) -> None:
    latent, grouped = (write_tiny_model(tmp_path / arch, arch=arch, quant="f32").gguf for arch in ("v2lite", "qwen3"))
    spec = read_spec(open_gguf(latent))
    mixer = replace(grouped_of(read_spec(open_gguf(grouped))), rope=spec.rope)
    mixed = with_mixer(spec, 1, mixer)
    of_grouped: Tensors = {}
    copy_model(grouped, tmp_path / "unused.gguf", lambda tensors: of_grouped.update(tensors) or tensors)

    def take_grouped(tensors: Tensors) -> Tensors:
        """Give layer 1 the attention of the grouped model."""
        others = {name: tensor for name, tensor in tensors.items() if not name.startswith("blk.1.attn_")}
        return others | {name: tensor for name, tensor in of_grouped.items() if name.startswith("blk.1.attn_")}

    def mute(name: str, data: np.ndarray) -> np.ndarray:
        return 0 * data if name == "blk.1.attn_output.weight" else data

    found = copy_model(latent, tmp_path / "mixed.gguf", take_grouped)
    logits = logits_of(found, mixed, isa)
    assert np.isfinite(logits).all()
    # Without attention in layer 1, its kind makes no difference to other layers.
    muted, expected = (
        copy_model(file, tmp_path / f"{file.stem}-muted.gguf", changed_by(mute)) for file in (found, latent)
    )
    without = logits_of(muted, mixed, isa)
    np.testing.assert_array_equal(without, logits_of(expected, spec, isa))
    assert np.abs(logits - without).max() > 0.1
