"""A layer declares its tensors once. Checks, sizes, placement names and weights derive from the declaration."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from importlib import import_module
from math import prod
from pathlib import Path
from pkgutil import iter_modules

import pytest

from ballast._core import kernels
from ballast.engine.startup.build import EngineSettings
from ballast.engine.startup.loading import load_runner
from ballast.errors import ModelError
from ballast.model.layers.grouped import QK_NORM, QKV_BIAS, GroupedSpec
from ballast.model.layers.tensor import Tensor, matrix
from ballast.model.modules import module_tree
from ballast.model.packed_size import loaded_bytes
from ballast.model.packed_tensors import Packing
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors, expected_tensors, layer_tensors
from ballast.model.weights import load_weights
from ballast.weights.gguf import open_gguf
from devkit.models import specs
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import write_model
from devkit.models.specs.deepseek import V3_SPEC
from devkit.models.specs.qwen3 import QWEN3_SPEC

_FAMILIES = [import_module(f"{specs.__name__}.{module.name}") for module in iter_modules(specs.__path__)]
SPECS = {name: spec for family in _FAMILIES for name, spec in vars(family).items() if name.endswith("_SPEC")}
GATE = "blk.1.attn_gate.weight"


class GatedSpec(GroupedSpec):
    """Grouped-query attention with an additional tensor that only this declaration mentions."""

    def declared(self, hidden: int) -> tuple[Tensor, ...]:
        gate = matrix("gate", "attn_gate", (self.num_heads * self.v_dim, hidden), "self_attn.g_proj")
        return (*super().declared(hidden), gate)


def gated() -> ModelSpec:
    mixer = QWEN3_SPEC.layers[0].mixer
    return changed(QWEN3_SPEC, mixer=GatedSpec(**{field.name: getattr(mixer, field.name) for field in fields(mixer)}))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_roles_and_names_of_a_layer_are_unique(spec: ModelSpec) -> None:
    for layer in range(spec.num_layers):
        tensors = layer_tensors(spec, layer)
        assert len({tensor.role for tensor in tensors}) == len({tensor.name for tensor in tensors}) == len(tensors)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_matrices_per_head_cover_all_rows_of_their_tensor(spec: ModelSpec) -> None:
    split = [tensor for tensor in expected_tensors(spec).values() if tensor.heads]
    for tensor in split:
        assert sum(rows.num_heads * rows.num_rows for rows in tensor.heads) == prod(tensor.shape[:-1])
    assert bool(split) == (spec.architecture.attention in ("latent", "compressed"))


def test_a_declared_tensor_must_be_in_the_file(tmp_path: Path) -> None:
    spec = gated()
    check_tensors(open_gguf(write_model(tmp_path / "whole.gguf", spec)), spec)
    lacking = open_gguf(write_model(tmp_path / "lacking.gguf", spec, shapes={GATE: None}))
    with pytest.raises(ModelError, match=rf"{re.escape(GATE)}: is missing; expected shape \(128, 64\)"):
        check_tensors(lacking, spec)
    narrow = open_gguf(write_model(tmp_path / "narrow.gguf", spec, shapes={GATE: (127, 64)}))
    with pytest.raises(ModelError, match=rf"{re.escape(GATE)}: expected shape \(128, 64\), found \(127, 64\)"):
        check_tensors(narrow, spec)


def test_a_declared_tensor_is_counted_placed_and_loaded(tmp_path: Path) -> None:
    spec, isa = gated(), kernels.usable_isas()[0]
    file = open_gguf(write_model(tmp_path / "m.gguf", spec))
    assert loaded_bytes(file, spec, isa, (2,))[GATE] == kernels.packed_nbytes(0, num_rows=128, cols=64)
    assert loaded_bytes(file, spec, "reference", (2,))[GATE] == 128 * 64 * 4
    assert "model.layers.1.self_attn.g_proj" in {module.name for module in module_tree(spec)}
    assert expected_tensors(spec)[GATE].group == "attention"
    packing = Packing(kernels.ThreadPool(2), isa, None)
    weights = load_weights(file, spec, spec.vocab_size, packing, lambda _: None)
    assert [(layer["gate"].rows, layer["gate"].cols) for layer in weights.layers] == [(128, 64)] * spec.num_layers


def test_a_declared_tensor_that_the_forward_pass_does_not_use_is_rejected(tmp_path: Path) -> None:
    spec = gated()
    settings = EngineSettings(
        cache_lens=64, max_batch_size=1, max_new_tokens=8, chunk_size=8, prefill_chunk_size=8, max_queue=1
    )
    file = open_gguf(write_model(tmp_path / "m.gguf", spec))
    with pytest.raises(ValueError, match=r"layers\[0\]\.gate is not used by this layer; expected no such tensor"):
        load_runner(file, spec, spec.vocab_size, settings)


def test_a_layer_has_the_tensors_of_its_options_only() -> None:
    def roles(*options: str) -> set[str]:
        spec = changed(QWEN3_SPEC, options=frozenset(options))
        return {tensor.role for tensor in layer_tensors(spec, 0)}

    biases, norms = {"query_bias", "key_bias", "value_bias"}, {"query_norm", "key_norm"}
    assert roles(QKV_BIAS) - roles() == biases
    assert roles(QK_NORM) - roles() == norms
    assert roles(QK_NORM, QKV_BIAS) == roles() | biases | norms


def test_layers_of_different_routing_rules_are_rejected() -> None:
    *others, last = V3_SPEC.layers
    assert last.experts is not None
    experts = replace(last.experts, routing=replace(last.experts.routing, num_experts_used=1))
    with pytest.raises(ValueError, match="expected the same rule in all routed layers"):
        replace(V3_SPEC, layers=(*others, replace(last, feed_forward=experts)))
