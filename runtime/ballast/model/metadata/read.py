"""Reads a ModelSpec from a GGUF's metadata and, if there is one, the model's config.json.

The GGUF decides. config.json, or else the table of known models, supplies what older conversions left out (each use is
logged); config.json is otherwise compared with the GGUF: a contradiction means that the two belong to different models.
Key names and their meaning: llama.cpp's; rules of routing and YaRN: transformers'. What files leave to the architecture
is in `ballast.families`.
"""

from __future__ import annotations

from ballast.errors import ModelError, shown
from ballast.families.architecture import Architecture
from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.feed_forward import RoutingSpec
from ballast.model.layers.layer import LayerSpec
from ballast.model.metadata.agreement import check_config
from ballast.model.metadata.hf_config import HfConfig
from ballast.model.metadata.keys import Keys
from ballast.model.metadata.known_models import matching_models
from ballast.model.metadata.layers import read_feed_forwards, read_layers, read_vocab_size, read_widths
from ballast.model.metadata.mixers.read import dimensions_of, read_mixers
from ballast.model.metadata.mixers.recurrent import recurrent_layers
from ballast.model.metadata.ngram import read_ngram
from ballast.model.metadata.other_architectures import refusal
from ballast.model.metadata.positions import read_rope
from ballast.model.metadata.routing import read_routing
from ballast.model.metadata.settings import Settings
from ballast.model.metadata.stream import read_stream
from ballast.model.spec import ModelSpec
from ballast.weights.file_kind import OTHER_KINDS, VOCABULARY, other_type
from ballast.weights.gguf import GgufModel

_QUERY_SCALE_KEY = "attention.temperature_scale"
"""Refused where the architecture does not scale queries by position."""
_WINDOW_KEY = "attention.sliding_window"
"""Refused where the architecture has no windows."""
_INDEXER_KEY = "attention.indexer.top_k"
"""Refused where the architecture's attention sees all positions."""
_MAX_NAME_CHARS = 256


def read_spec(gguf: GgufModel, config: HfConfig | None = None) -> ModelSpec:
    """The model's spec. Raises ModelError for another architecture, a missing key, an impossible value, or a
    contradiction between the GGUF and config.json; ConfigError for a missing key that config.json could supply."""
    keys = Keys(gguf, _architecture(gguf))
    _check_keys(keys)
    layers = read_layers(keys)
    widths = read_widths(keys, layers)
    dimensions = dimensions_of(keys, layers, widths)
    settings = Settings(keys, config, () if dimensions is None else matching_models(dimensions, keys))
    mixers = read_mixers(settings, layers, widths, read_rope(settings))
    routing, stream = read_routing(settings, layers, widths), read_stream(keys)
    vocab_size = read_vocab_size(keys)
    ngram_layer, ngram = read_ngram(keys, recurrent_layers(keys, layers.num_layers), vocab_size) or (None, None)
    spec = ModelSpec(
        name=_name(keys),
        architecture=keys.architecture,
        vocab_size=vocab_size,
        context_length=keys.whole("context_length"),
        hidden=widths.hidden,
        layers=tuple(
            LayerSpec(mixer, feed_forward, stream, ngram if layer == ngram_layer else None)
            for layer, (mixer, feed_forward) in enumerate(
                zip(mixers, read_feed_forwards(keys, layers, widths, routing), strict=True)
            )
        ),
        rms_eps=keys.number("attention.layer_norm_rms_epsilon", above=1e-30, most=1.0),
        tied_output=not keys.has_tensor("output.weight"),
    )
    _check_routing(keys, routing)
    if config is not None:
        check_config(keys, spec, config)
    return spec


def _architecture(gguf: GgufModel) -> Architecture:
    """Raises ModelError for one that is not served."""
    found = gguf.metadata.get("general.architecture")
    kind = other_type(gguf.metadata)
    if kind is not None:
        raise ModelError(gguf.path, f"this is {OTHER_KINDS[kind]}")
    if found is None:
        raise ModelError(gguf.path, "general.architecture is missing; expected a GGUF file of a model")
    if not gguf.tensors:
        raise ModelError(gguf.path, f"this is {VOCABULARY}")
    if not isinstance(found, str) or found not in ARCHITECTURES:
        raise ModelError(gguf.path, refusal(found))
    return ARCHITECTURES[found]


def _check_keys(keys: Keys) -> None:
    architecture = keys.architecture
    is_read = {
        _QUERY_SCALE_KEY: architecture.scales_queries,
        _WINDOW_KEY: architecture.windows is not None or architecture.attention == "compressed",
        _INDEXER_KEY: architecture.index_pairs is not None or architecture.attention == "compressed",
    }
    for key in is_read:
        if keys.get(key) and not is_read[key]:
            raise keys.refuse(f"{keys.full(key)}={shown(keys.get(key))}: this model's attention is not supported")


def _name(keys: Keys) -> str:
    name = keys.gguf.metadata.get("general.name", "")
    if not isinstance(name, str) or len(name) > _MAX_NAME_CHARS:
        raise keys.refuse(f"general.name={shown(name)}; expected a text of at most {_MAX_NAME_CHARS} characters")
    return name or keys.gguf.path.stem


def _check_routing(keys: Keys, routing: RoutingSpec) -> None:
    """Relations between the numbers that no single key can show."""
    if routing.num_experts % routing.num_groups:
        raise keys.refuse(f"{routing.num_experts} experts in {routing.num_groups} groups; expected equal groups")
    group_size = routing.num_experts // routing.num_groups
    reachable = group_size * routing.num_groups_used
    if routing.num_experts_used > reachable:
        raise keys.refuse(
            f"{keys.full('expert_used_count')}={routing.num_experts_used}; expected at most {reachable}, "
            "the experts in the groups used"
        )
    if routing.num_groups > 1 and routing.group_score == "top2_sum" and group_size < 2:
        raise keys.refuse(f"groups of {group_size} expert; expected at least 2, groups are ranked by their best two")
