"""A model as the tree of modules that placement rules refer to, with the names of its publisher's own code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ballast.model.layers.layer import RecurrentMixer
from ballast.model.spec import ModelSpec
from ballast.model.tensors import (
    EMBEDDING,
    NGRAM_TABLE,
    OUTPUT,
    ROPE_FACTORS,
    layer_tensors,
    output_tensors,
    used_tensors,
)
from ballast.moe.device_rules import Module


def module_tree(spec: ModelSpec) -> list[Module]:
    """Every module, parents before children; the root's name is empty. The routed experts of a layer are one module,
    since they are placed as a whole."""
    family = spec.architecture.modules[spec.routing.gating]
    return [
        Module(name, frozenset(each.format(family=family) for each in classes) | {"Module"})
        for name, classes in _classes(spec).items()
    ]


def _classes(spec: ModelSpec) -> Mapping[str, tuple[str, ...]]:
    """The classes of each module, where `{family}` stands for the prefix of the family's own."""
    used = used_tensors(spec)
    found: dict[str, tuple[str, ...]] = {
        "": ("{family}ForCausalLM",),
        "model": ("{family}Model",),
        used[EMBEDDING].module: used[EMBEDDING].classes,
        "model.layers": ("ModuleList",),
    }
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}"
        found[prefix] = ("{family}DecoderLayer",)
        found |= {f"{prefix}.{name}": classes for name, classes in _containers(spec, layer)}
        # A layer's own norms come last, as in the publishers' code.
        tensors = sorted(layer_tensors(spec, layer), key=lambda tensor: tensor.module.count(".") == 3)
        found |= {tensor.module: tensor.classes for tensor in tensors}
    names = (NGRAM_TABLE, ROPE_FACTORS, *(tensor.name for tensor in output_tensors(spec)), OUTPUT)
    return found | {used[name].module: used[name].classes for name in names if name in used}


def _containers(spec: ModelSpec, layer: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Of a layer, the modules without tensors of their own."""
    mixer, feed_forward = spec.layers[layer].mixer, spec.layers[layer].feed_forward
    yield from mixer.modules.items()
    if not isinstance(mixer, RecurrentMixer) and mixer.rope in spec.ropes:
        yarn = ("{family}YarnRotaryEmbedding",) if mixer.rope.yarn else ()
        yield "self_attn.rotary_emb", ("{family}RotaryEmbedding", *yarn)
    yield from feed_forward.modules(spec.architecture.moe_module).items()
