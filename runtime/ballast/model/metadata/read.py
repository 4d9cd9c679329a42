"""Reads a ModelSpec from a GGUF's metadata and, if there is one, the model's config.json.

The GGUF decides. config.json, or else the table of known models, supplies what older conversions left out (each use is
logged); config.json is otherwise compared with the GGUF: a contradiction means that the two belong to different models.
Key names and their meaning: llama.cpp's; rules of routing and YaRN: transformers'. What files leave to the architecture
is in `ballast.families`.
"""

from __future__ import annotations

from ballast.errors import ModelError, shown
from ballast.families.architecture import Architecture
from ballast.families.registry import ARCHITECTURES, served_models
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

_LOOK_ALIKES = {
    "deepseek": "DeepSeek MoE, the model before V2, without latent attention",
    "deepseek2-ocr": "DeepSeek OCR, not DeepSeek V2 or V3",
    "qwen35": "a dense Qwen3.5, not a mixture of experts",
    "qwen3vlmoe": "Qwen3-VL, which sees images",
    "kimi-k3": "Kimi K3, another architecture than K2",
    "bailingmoe": "Ling (Bailing MoE), not DeepSeek",
    "bailingmoe2": "Ling 2.0 or Ring 2.0, not DeepSeek",
    "bailingmoe3": "Ling 3.0, not DeepSeek",
    "dots3": "dots3, another architecture than dots1",
    "glm4": "a dense GLM-4, not GLM-4.5",
    "qwen2moe": "Qwen2-MoE, not Qwen3-MoE",
    "qwen3": "a dense Qwen3, not a mixture of experts",
    "mistral3": "a dense Ministral 3 or Mistral Small 3, not a mixture of experts",
    "mistral-large": "Mistral Large, not Mistral Large 3, whose files are deepseek2",
    "mistral-large4": "Mistral Large 4, whose attention is sparse and partly without positions, not Mistral Large 3",
    "minimax": "MiniMax-Text-01 or M1, most of whose layers have linear attention, not MiniMax-M2",
    "minimax-m3": "MiniMax-M3, whose attention is sparse by blocks, not MiniMax-M2",
    "hunyuan-moe": "Hunyuan-A13B, which norms queries and keys after their rotation, not Hunyuan 3",
    "hunyuan-dense": "a dense Hunyuan, not Hunyuan 3",
    "hy_v4": "Hunyuan 4, whose layers have hyper-connections, not Hunyuan 3",
    "gptoss": "gpt-oss as Ollama converts it, with other names of tensors than llama.cpp's gpt-oss",
    "afmoe": "Trinity (AFMoE), whose attention has windows and gates",
    "dflash": "a draft model for another model",
}
"""Architectures whose names are taken for that of a model that is served. Names that begin with one of these, such as
deepseek41, get its hint as a relative of it."""


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
        served = ", ".join(f"{each.name} ({served_models(each)})" for each in ARCHITECTURES.values())
        other = _hint(found) if isinstance(found, str) else ""
        raise ModelError(gguf.path, f"general.architecture={shown(found)}{other}; supported are {served}")
    return ARCHITECTURES[found]


def _hint(name: str) -> str:
    """A clause that describes an architecture which is often confused with a served one; "" for others."""
    if name in _LOOK_ALIKES:
        return f", which is {_LOOK_ALIKES[name]}"
    related = max((each for each in (*_LOOK_ALIKES, *ARCHITECTURES) if name.startswith(each)), key=len, default=None)
    if related is None:
        return ""
    if related in ARCHITECTURES:
        return f", which is another architecture than {related}"
    return f", a relative of {related}, which is {_LOOK_ALIKES[related]}"


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
