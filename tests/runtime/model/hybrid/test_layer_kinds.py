"""Warm-up steps run one layer of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as T

from ballast.engine.startup.build import EngineSettings
from ballast.model.hybrid.experts.layer_on_device import LayerOnDevice
from ballast.model.hybrid.startup.layer_kinds import one_of_each_kind
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models.float_hybrid import load_hybrid
from devkit.models.gguf_files import common_types, write_hollow_model
from devkit.models.specs.deepseek import R1_SPEC
from devkit.models.specs.glm import GLM52_SPEC
from devkit.models.written import MakeTiny

NUM_ROUTED = len(R1_SPEC.routed_layers)


@pytest.fixture(scope="module")
def r1(tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    """Values of layers 3, 4 and 7 have a more precise type."""
    types = common_types(R1_SPEC)
    types |= {f"blk.{index}.ffn_down_exps.weight": T.Q8_0 for index in (3, 4, 7)}
    file: Path = tmp_path_factory.mktemp("r1") / "r1.gguf"
    return open_gguf(write_hollow_model(file, R1_SPEC, types))


def kinds(model: GgufModel, **experts: int) -> list[int]:
    """`experts`: experts on the device by routed layer, for example l0=2."""
    on_device = [LayerOnDevice(num_gpu_experts=experts.get(f"l{index}", 0)) for index in range(NUM_ROUTED)]
    return one_of_each_kind(model, R1_SPEC, dict(enumerate(on_device)), range(R1_SPEC.num_layers))


def test_each_combination_of_types_has_an_odd_and_an_even_layer(r1: GgufModel) -> None:
    types = [
        (
            index % 2,
            *sorted(
                (name.split(".", 2)[2], info.ggml_type)
                for name, info in r1.tensors.items()
                if name.startswith(f"blk.{index}.")
            ),
        )
        for index in range(R1_SPEC.num_layers)
    ]
    assert kinds(r1) == [index for index, of_layer in enumerate(types) if types.index(of_layer) == index]
    assert {0, 1, 3, 4, 5, 6} <= set(kinds(r1))
    assert len(kinds(r1)) < 12


def test_layers_with_different_copies_have_different_kinds(r1: GgufModel) -> None:
    assert set(kinds(r1, l30=2)) - set(kinds(r1)) == {33}


def test_a_shared_selection_is_computed_before_it_is_used(tmp_path: Path) -> None:
    """The model is GLM-5.2, in which layers 0, 1 and every fourth one have an indexer."""
    model = open_gguf(write_hollow_model(tmp_path / "glm.gguf", GLM52_SPEC, common_types(GLM52_SPEC)))
    found = one_of_each_kind(model, GLM52_SPEC, {}, range(GLM52_SPEC.num_layers))
    assert found[0] == 0
    assert {len(GLM52_SPEC.planes[index]) for index in found} == {1, 2}


def test_warm_up_runs_only_these_layers(written: MakeTiny) -> None:
    """Layer 3 uses the selection of layer 0; the layers in between are skipped."""
    settings = EngineSettings(
        cache_lens=64, max_batch_size=2, max_new_tokens=8, chunk_size=8, prefill_chunk_size=40, max_queue=1
    )
    file = written(arch="glm5", quant="q4_k").gguf
    hybrid = load_hybrid(file, torch.device("cpu"), settings)
    caches = hybrid.devices[0].kv.layers
    assert [layer.index_keys is not None for layer in caches] == [True, True, True, False, False, True]
    hybrid.warm_up([1, 40], hybrid._experts._host.idle(), [0, 3])
    assert [bool(layer.rows.any()) for layer in caches] == [True, False, False, True, False, False]
