"""Hugging Face transformers as the reference for our arithmetic: its models with a GGUF's dequantized weights.

Reads files only with the gguf package and computes in float32 throughout, so that our code does not check itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
import transformers.initialization
from gguf import GGUFReader, ReaderTensor
from numpy.typing import NDArray

from devkit.models import random_blocks

Floats = NDArray[np.float32]

_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\.gguf")

# GGUF name → transformers name, for one-to-one mappings. In blocks: `blk.N.X` → `model.layers.N.Y`.
_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_a.weight": "self_attn.q_a_proj.weight",
    "attn_q_a_norm.weight": "self_attn.q_a_layernorm.weight",
    "attn_q_b.weight": "self_attn.q_b_proj.weight",
    "attn_kv_a_mqa.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attn_kv_a_norm.weight": "self_attn.kv_a_layernorm.weight",
    "attn_kv_b.weight": "self_attn.kv_b_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_output.bias": "self_attn.o_proj.bias",
    "attn_sinks.weight": "self_attn.sinks",
    "attn_gate.weight": "self_attn.g_proj.weight",
    "indexer.attn_q_b.weight": "self_attn.indexer.wq_b.weight",
    "indexer.attn_k.weight": "self_attn.indexer.wk.weight",
    "indexer.k_norm.weight": "self_attn.indexer.k_norm.weight",
    "indexer.k_norm.bias": "self_attn.indexer.k_norm.bias",
    "indexer.q_proj.weight": "self_attn.indexer.q_proj.weight",
    "indexer.q_norm.weight": "self_attn.indexer.q_norm.weight",
    "indexer.k_proj.weight": "self_attn.indexer.k_proj.weight",
    "indexer.proj.weight": "self_attn.indexer.weights_proj.weight",
    "indexer_compressor_gate.weight": "self_attn.indexer.index_kpool_compress_gate",
    "indexer_compressor_ape.weight": "self_attn.indexer.index_kpool_compress_ape",
    **{
        f"hc_{block}_{name}.weight": f"{block}_hc.{name}"
        for block in ("attn", "ffn")
        for name in ("fn", "base", "scale")
    },
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
    "ffn_gate_inp.bias": "mlp.gate.bias",
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
    "ffn_gate_up_exps.bias": "mlp.experts.gate_up_proj_bias",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
    "ffn_gate_shexp.weight": "mlp.shared_experts.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_experts.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_experts.down_proj.weight",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ssm_in.weight": "linear_attn.in_proj_qkvz.weight",
    "ssm_ba.weight": "linear_attn.in_proj_ba.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
}


class PlainReader(GGUFReader):
    """Reads a file as a plain array: numpy slices a memmap several times as slowly."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, np.asarray(value) if name == "data" else value)


_KIMI_NAMES = {
    "conv1d_q.weight": "conv1d.weight",
    "beta.weight": "b_proj.weight",
    "f_a.weight": "forget_gate.f_a_proj.weight",
    "f_b.weight": "forget_gate.f_b_proj.weight",
    "a": "forget_gate.A_log",
    "dt.bias": "forget_gate.dt_bias",
    "g_a.weight": "g_a_proj.weight",
    "g_b.weight": "g_b_proj.weight",
    "norm.weight": "o_norm.weight",
}
"""Tensor names in a Kimi Delta Attention layer: after `ssm_` in a GGUF → after `self_attn.` in transformers."""


_V4_NAMES = {
    "attn_q_a_norm.weight": "q_a_norm.weight",
    "attn_kv.weight": "kv_proj.weight",
    "attn_kv_a_norm.weight": "kv_norm.weight",
    "attn_output_a.weight": "o_a_proj.weight",
    "attn_output_b.weight": "o_b_proj.weight",
    "indexer.proj.weight": "compressor.indexer.scorer.weights_proj.weight",
    "indexer.attn_q_b.weight": "compressor.indexer.q_b_proj.weight",
    **{
        f"{stem}_compressor_{name}.weight": f"{module}.{own}"
        for stem, module in (("attn", "compressor"), ("indexer", "compressor.indexer"))
        for name, own in (
            ("kv", "kv_proj.weight"),
            ("gate", "gate_proj.weight"),
            ("ape", "position_bias"),
            ("norm", "kv_norm.weight"),
        )
    },
}
"""Tensor names in a block of DeepSeek V4 → after `self_attn.` in transformers."""


class TextForCausalLM(torch.nn.Module):
    """A text model with a head, where transformers has a head only for the multimodal model."""

    config_class: Any

    def __init__(self, text_model: Any, config: Any) -> None:
        super().__init__()
        self.model = text_model(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        states = self.model(input_ids=input_ids, use_cache=use_cache).last_hidden_state
        return SimpleNamespace(logits=self.lm_head(states))


class StepForCausalLM(TextForCausalLM):
    config_class = transformers.models.step3p7.Step3p7TextConfig

    def __init__(self, config: Any) -> None:
        super().__init__(transformers.models.step3p7.Step3p7TextModel, config)


class GlmNextForCausalLM(TextForCausalLM):
    config_class = transformers.models.glm5_next.Glm5NextTextConfig

    def __init__(self, config: Any) -> None:
        super().__init__(transformers.models.glm5_next.Glm5NextTextModel, config)


_WITH_HEADS = {"Step3p5ForCausalLM": StepForCausalLM, "Glm5NextForConditionalGeneration": GlmNextForCausalLM}


def hf_model(gguf_path: Path, config_dir: Path) -> Any:
    """The transformers model that `config_dir`/config.json describes, with the weights of `gguf_path` (any shard).

    Raises RuntimeError with the names if weights are missing, unexpected or of the wrong shape.
    """
    config_values = json.loads((config_dir / "config.json").read_text(encoding="utf-8"))
    # transformers imports a model's code when its class is first used, which takes seconds.
    name = config_values["architectures"][0]
    model_class = _WITH_HEADS.get(name) or getattr(transformers, name)
    config = model_class.config_class.from_dict(
        config_values, attn_implementation="eager", experts_implementation="eager", dtype="float32"
    )
    with transformers.initialization.no_init_weights():  # all are loaded below
        model = model_class(config).to(torch.float32)
    tensors = dequantized(gguf_path)
    if config.model_type == "qwen3_next":
        tensors = _grouped_by_key_head(tensors, config_values)
    if config.model_type == "qwen4_exp_text":
        tensors = _unmerged(tensors, config_values)
    if config.model_type in ("qwen3_5_moe_text", "qwen4_exp_text"):
        tensors = _with_neighbours(tensors, config_values)
    if config.model_type in ("kimi_linear", "glm5_next_text"):
        tensors = _with_kimi_names(tensors)
    if config.model_type == "deepseek_v4":
        tensors = _with_v4_names(tensors)
    weights = hf_weights(_separated(tensors, config_values))
    if config.model_type == "glm5_next_text":
        weights = {name: values.reshape(-1) if name.endswith(".A_log") else values for name, values in weights.items()}
    if config.model_type in ("qwen3_next", "qwen3_5_moe_text", "qwen4_exp_text"):
        weights = _as_qwen3_next(weights)
    if config.model_type == "qwen4_exp_text":
        weights = _as_qwen4_exp(weights, gguf_path)
    if config.model_type == "gpt_oss":
        weights = _as_gpt_oss(weights)
    if model_class is StepForCausalLM:
        weights = _as_step(weights)
    own = model.state_dict().keys()
    # Some classes keep the router's bias in the block, not in the router.
    weights = {name if name in own else name.replace(".gate.e_score", ".e_score"): weights[name] for name in weights}
    model.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()}, strict=True)
    return model.eval()


def near_ties(model: Any, ids: Sequence[int], noise: float, num_copies: int = 64) -> set[int]:
    """Positions at which a layer's choice of experts, or of positions to attend to, is a near tie.

    A position counts if the choice differs for at least one of `num_copies` copies of the input, each with random noise
    of `noise` times its magnitude.
    """
    random = torch.Generator().manual_seed(0)
    positions: set[int] = set()

    def look(router: Any, seen: tuple[torch.Tensor, ...], result: tuple[torch.Tensor, ...]) -> None:
        states = seen[0].reshape(-1, seen[0].shape[-1])
        chosen = result[-1].reshape(len(states), -1).sort(dim=-1).values
        moved = states * (1 + noise * torch.randn((num_copies, *states.shape), generator=random))
        others = router.forward(moved.flatten(0, 1), *seen[1:])[-1].reshape(num_copies, len(states), -1)
        changed = (others.sort(dim=-1).values != chosen).any(dim=-1).any(dim=0)
        positions.update(torch.nonzero(changed).flatten().tolist())

    def look_at_index(
        indexer: Any, seen: tuple[torch.Tensor, ...], named: Mapping[str, Any], result: torch.Tensor
    ) -> None:
        given: list[Any] = [*seen, *named.values()]
        states, queries, *others = given
        chosen = result[0].sort(dim=-1).values
        for _ in range(num_copies):
            moved = [each * (1 + noise * torch.randn(each.shape, generator=random)) for each in (states, queries)]
            again = indexer.forward(*moved, *others)[0].sort(dim=-1).values
            positions.update(torch.nonzero(_seen_of(again) != _seen_of(chosen))[:, 0].tolist())

    def look_at_blocks(indexer: Any, seen: tuple[Any, ...], result: torch.Tensor) -> None:
        states, *others = seen
        for _ in range(num_copies):
            again = indexer.forward(states * (1 + noise * torch.randn(states.shape, generator=random)), *others)
            positions.update(torch.nonzero((again != result)[0, 0].any(dim=-1)).flatten().tolist())

    routers = [module for module in model.modules() if type(module).__name__.lower().endswith("topkrouter")]
    assert routers, "the model has no routers, so it has no near ties"
    indexers = [module for module in model.modules() if type(module).__name__.endswith("Indexer")]
    of_blocks = [indexer for indexer in indexers if type(indexer).__name__.endswith("QSAIndexer")]
    hooks = [router.register_forward_hook(look) for router in routers]
    hooks += [indexer.register_forward_hook(look_at_blocks) for indexer in of_blocks]
    others = [indexer for indexer in indexers if indexer not in of_blocks]
    hooks += [indexer.register_forward_hook(look_at_index, with_kwargs=True) for indexer in others]
    try:
        hf_logits(model, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return positions


def _seen_of(chosen: torch.Tensor) -> torch.Tensor:
    """Choices [positions, chosen] limited to the positions that a token sees; all others become one value. If fewer are
    visible than are chosen, transformers also chooses hidden ones and masks them."""
    return torch.where(chosen <= torch.arange(len(chosen))[:, None], chosen, len(chosen)).sort(dim=-1).values


def hf_logits(model: Any, ids: Sequence[int]) -> Floats:
    """The logits after each of `ids`, float32 [len(ids), rows of the output], computed in one pass without a cache."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    assert logits.dtype == torch.float32
    values: Floats = logits.numpy()
    return values


def dequantized(gguf_path: Path) -> dict[str, Floats]:
    """Every tensor of the model by its GGUF name, row-major, multiplied by its scale."""
    shard = _SHARD.fullmatch(gguf_path.name)
    files = sorted(gguf_path.parent.glob(f"{shard[1]}-*-of-*.gguf")) if shard else [gguf_path]
    return with_scales({tensor.name: values_of(tensor) for file in files for tensor in PlainReader(file).tensors})


def values_of(tensor: ReaderTensor) -> Floats:
    """The tensor's stored values, dequantized."""
    return np.array(random_blocks.dequantized(np.asarray(tensor.data), tensor.tensor_type), np.float32)


def with_scales(tensors: Mapping[str, Floats]) -> dict[str, Floats]:
    """Matrices multiplied by their scales from the file; each expert has its own scale."""
    scaled = {name: values for name, values in tensors.items() if not name.endswith(".scale")}
    for name in tensors.keys() - scaled.keys():
        matrix = f"{name.removesuffix('.scale')}.weight"
        scaled[matrix] = (
            (scaled[matrix].T * tensors[name]).T if len(tensors[name]) > 1 else scaled[matrix] * tensors[name]
        )
    return scaled


def hf_weights(tensors: Mapping[str, Floats]) -> dict[str, Floats]:
    """GGUF tensors with the names and shapes of transformers."""
    named = dict(tensors)
    for name in tensors:
        block = name.rpartition(".attn_k_b.")[0]
        if block:
            named[f"{block}.attn_kv_b.weight"] = _joint(
                named.pop(f"{block}.attn_k_b.weight"), named.pop(f"{block}.attn_v_b.weight")
            )
        block, _, kind = name.rpartition(".ffn_gate_exps.")
        if block:
            halves = named.pop(f"{block}.ffn_gate_exps.{kind}"), named.pop(f"{block}.ffn_up_exps.{kind}")
            named[f"{block}.ffn_gate_up_exps.{kind}"] = np.concatenate(halves, axis=1)
    return {_hf_name(name): values for name, values in named.items()}


def _separated(tensors: Mapping[str, Floats], config: Mapping[str, Any]) -> dict[str, Floats]:
    """`tensors` with each fused query-key-value matrix split into three."""
    found = dict(tensors)
    for name in tensors:
        block, is_fused, _ = name.partition(".attn_qkv.")
        if is_fused:
            values = found.pop(name)
            num_queries = config["num_attention_heads"] * config["head_dim"]
            widths = config["head_dim"], config.get("v_head_dim", config["head_dim"])
            num_keys = (len(values) - num_queries) * widths[0] // sum(widths)
            parts = np.split(values, [num_queries, num_queries + num_keys])
            found |= {f"{block}.attn_{kind}.weight": part for kind, part in zip("qkv", parts, strict=True)}
    return found


def _grouped_by_key_head(tensors: Mapping[str, Floats], config: Mapping[str, Any]) -> dict[str, Floats]:
    """`tensors` with the projections grouped by key head (query, key, values, gates) in one matrix, as in older
    files."""
    found, heads = dict(tensors), config["linear_num_key_heads"]
    keys = heads * config["linear_key_head_dim"]
    for name in tensors:
        block, is_product, _ = name.partition(".attn_qkv.")
        if is_product and f"{block}.attn_gate.weight" in found:
            parts = (*np.split(found.pop(name), [keys, 2 * keys]), found.pop(f"{block}.attn_gate.weight"))
            by_head = [part.reshape(heads, -1, part.shape[1]) for part in parts]
            found[f"{block}.ssm_in.weight"] = np.concatenate(by_head, axis=1).reshape(-1, parts[0].shape[1])
    return found


def _with_neighbours(tensors: Mapping[str, Floats], config: Mapping[str, Any]) -> dict[str, Floats]:
    """`tensors` with value heads that share a key head adjacent to each other, as before the GGUF conversion."""
    key_heads, heads, width = (
        config[f"linear_{name}"] for name in ("num_key_heads", "num_value_heads", "key_head_dim")
    )
    order = np.arange(heads).reshape(-1, key_heads).T.ravel()
    keys = 2 * key_heads * width
    of_values = (order[:, None] * width + np.arange(width)).ravel()
    of_channels = np.concatenate([np.arange(keys), keys + of_values])
    rows = {"ssm_conv1d.weight": of_channels}
    rows |= dict.fromkeys(("ssm_beta.weight", "ssm_alpha.weight", "ssm_a", "ssm_dt.bias"), order)
    found = {}
    for name, values in tensors.items():
        block = name.rpartition(".attn_qkv.")[0]
        if block and f"{block}.ssm_out.weight" in tensors:
            found[f"{block}.linear_attn.in_proj_qkv.weight"] = values[of_channels]
        elif name.endswith(".ssm_out.weight"):
            found[name] = values[:, of_values]
        elif name.endswith(".attn_gate.weight"):
            found[name.replace("attn_gate", "linear_attn.in_proj_z")] = values[of_values]
        else:
            own = next((order for end, order in rows.items() if name.endswith(f".{end}")), None)
            found[name] = values if own is None else values[own]
    return found


def _as_qwen3_next(weights: Mapping[str, Floats]) -> dict[str, Floats]:
    """Subtract one from norms, except the head norms of linear attention; convert rates to logarithms."""
    found = {name.replace(".shared_experts.", ".shared_expert."): values for name, values in weights.items()}
    for name, values in found.items():
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            found[name] = values - 1
        if name.endswith(".A_log"):
            found[name] = np.log(-values)
        if name.endswith(".conv1d.weight"):
            found[name] = values[:, None]
        if name.endswith(".shared_expert_gate.weight"):
            found[name] = values[None]
    return found


_STREAM_NAMES = {
    "norm": "hc_norm",
    "down": "input_mix_weight_down",
    "up": "input_mix_weight_up",
    "inject": "block_inject_weight",
}
_NGRAM_TABLE = "per_layer_token_embd.weight"


def _unmerged(tensors: Mapping[str, Floats], config: Mapping[str, Any]) -> dict[str, Floats]:
    """`tensors` with each of those apart that some files merge."""
    heads, width = config["linear_num_value_heads"], config["linear_value_head_dim"]
    parts = {
        "attn_qkv_gate": ("attn_qkv", "attn_gate", heads * width),
        "ssm_beta_alpha": ("ssm_beta", "ssm_alpha", heads),
        "hc_attn_down_inject": ("hc_attn_down", "hc_attn_inject", config["hc_count"]),
        "hc_ffn_down_inject": ("hc_ffn_down", "hc_ffn_inject", config["hc_count"]),
    }
    found: dict[str, Floats] = {}
    for name, values in tensors.items():
        block, _, stem = name.removesuffix(".weight").rpartition(".")
        if stem in parts:
            first, second, num_last = parts[stem]
            found |= {f"{block}.{first}.weight": values[:-num_last], f"{block}.{second}.weight": values[-num_last:]}
        else:
            found[name] = values
    return found


def _as_qwen4_exp(weights: Mapping[str, Floats], gguf_path: Path) -> dict[str, Any]:
    """Rename the tensors of streams, indexers and of the n-gram embedding; take its numbers from the file's keys."""
    fields = {name.partition(".")[2]: field for name, field in PlainReader(gguf_path).fields.items()}
    found: dict[str, Any] = {}
    for name, values in weights.items():
        block, is_connection, rest = name.rpartition(".hc_")
        if is_connection:
            kind, _, part = rest.removesuffix(".weight").partition("_")
            module = {"attn": "attn_hyper_connection", "ffn": "mlp_hyper_connection"}[kind]
            found[f"{block}.{module}.{_STREAM_NAMES[part]}.weight"] = values
        elif name.startswith("output_hc_"):
            part = name.removeprefix("output_hc_").removesuffix(".weight")
            found[f"model.hyper_connection_mixer.{_STREAM_NAMES[part]}.weight"] = values
        elif ".ple_norm_" in name:
            found[name.replace(".ple_norm_", ".ple.norm_")] = values - 1
        elif name.endswith(".ple_conv1d.weight"):
            found[name.replace(".ple_conv1d", ".ple.conv1d")] = values[:, None]
        elif ".ple_" in name:
            found[name.replace(".ple_", ".ple.").replace(".weight", "_proj.weight")] = values
        elif name.endswith(".indexer.q_proj.weight"):
            both = [values, weights[name.replace("q_proj", "k_proj")]]
            found[name.replace("q_proj", "index_qk_proj")] = np.concatenate(both)
        elif name.endswith((".indexer.q_norm.weight", ".indexer.k_norm.weight")):
            found[name.replace("_norm", "_layernorm")] = values
        elif name != _NGRAM_TABLE and not name.endswith(".indexer.k_proj.weight"):
            found[name] = values
    if _NGRAM_TABLE in weights:
        [layer] = fields["ple.layers"].contents()
        module = f"model.layers.{layer}.ple.ple_embedding"
        keys = {
            "layer_multipliers": "layer_multipliers",
            "ngram_heads_vocab_sizes": "head_vocab_sizes",
            "ngram_heads_offsets": "head_offsets",
        }
        found |= {f"{module}.{name}": np.array(fields[f"ple.{key}"].contents(), np.int64) for name, key in keys.items()}
        found[f"{module}.ngram_embedding.weight"] = weights[_NGRAM_TABLE]
    return found


def _with_kimi_names(tensors: Mapping[str, Floats]) -> dict[str, Floats]:
    """`tensors` with one convolution for queries, keys and values, and with rates as logarithms."""
    found = {}
    for name, values in tensors.items():
        block, _, rest = name.partition(".ssm_")
        if rest == "a":
            values = np.log(-values).reshape(1, 1, -1, 1)
        if rest == "conv1d_q.weight":
            parts = [tensors[f"{block}.ssm_conv1d_{letter}.weight"] for letter in "qkv"]
            values = np.concatenate(parts)[:, None]
        if rest not in ("conv1d_k.weight", "conv1d_v.weight"):
            found[f"{block}.self_attn.{_KIMI_NAMES[rest]}" if rest else name] = values
    return found


def _with_v4_names(tensors: Mapping[str, Floats]) -> dict[str, Any]:
    """`tensors` with transformers' names where other families have others, and with whole numbers of tables."""
    found: dict[str, Any] = {}
    for name, values in tensors.items():
        block, _, rest = name.partition(".ffn_gate_tid2eid")
        end = name.removeprefix("output_hc_").removesuffix(".weight")
        if rest:
            found[f"{block}.mlp.gate.tid2eid"] = values.astype(np.int64)
        elif name.startswith("output_hc_"):
            found[f"model.hc_head.hc_{end}"] = values
        else:
            parts = name.split(".", 2)
            own = _V4_NAMES.get(parts[-1])
            found[name if own is None else f"blk.{parts[1]}.self_attn.{own}"] = values
    return found


def _as_gpt_oss(weights: Mapping[str, Floats]) -> dict[str, Floats]:
    """Transpose experts, interleave the rows of gate and up, and rename the router."""
    found = {name.replace(".mlp.gate.", ".mlp.router."): values for name, values in weights.items()}
    for name, values in found.items():
        if ".gate_up_proj" in name:
            gate, up = np.split(values, 2, axis=1)
            values = np.stack([gate, up], axis=2).reshape(values.shape)
        if name.endswith((".gate_up_proj", ".down_proj")) and ".experts." in name:
            values = np.ascontiguousarray(values.transpose(0, 2, 1))
        found[name] = values
    return found


def _as_step(weights: Mapping[str, Floats]) -> dict[str, Floats]:
    """Subtract from norms the one that the conversion adds; drop the frequency factors, which config.json defines."""
    named = {name: values for name, values in weights.items() if name != "rope_freqs.weight"}
    return {name: values - 1 if name.endswith("norm.weight") else values for name, values in named.items()}


def _joint(key: Floats, value: Floats) -> Floats:
    """attn_k_b [heads, latent, nope] and attn_v_b [heads, v, latent] → kv_b_proj [heads · (nope + v), latent]."""
    return np.concatenate([key.transpose(0, 2, 1), value], axis=1).reshape(-1, value.shape[-1])


def _hf_name(name: str) -> str:
    """transformers' name of a tensor. Unknown names are unchanged, so that the strict load reports them."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    if not name.startswith("blk."):
        return name
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{_BLOCK_NAMES.get(rest, rest)}"
