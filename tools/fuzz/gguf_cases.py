"""Damaged GGUF files, made from small valid ones."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gguf import GGMLQuantizationType as GgmlType
from gguf import GGUFReader, GGUFValueType

from ballast.model.spec import ModelSpec
from ballast.model.tensors import ROPE_FACTORS
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import write_model
from devkit.models.specs.deepseek import V2_LITE_SPEC, V3_SPEC, V32_SPEC
from devkit.models.specs.deepseek4 import V4_SPEC
from devkit.models.specs.glm import GLM_DSA_SPEC, GLM_NEXT_SPEC, GLM_SPEC
from devkit.models.specs.gpt_oss import GPT_OSS_SPEC
from devkit.models.specs.kimi import KIMI_LINEAR_SPEC
from devkit.models.specs.laguna import LAGUNA_SPEC
from devkit.models.specs.mimo import MIMO_SPEC
from devkit.models.specs.qwen3 import FLASH_NEXT_SPEC, QWEN3_NEXT_SPEC, QWEN3_SPEC, with_small_table
from devkit.models.specs.step import STEP_SPEC
from devkit.models.vocabulary import byte_metadata
from tools.fuzz import hostile

_ALIGNMENT = 32
_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}"
_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One key; `item` is the type of an array's entries."""

    key: str
    kind: int
    value: Any
    item: int = 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class Content:
    """A parsed file."""

    fields: tuple[Field, ...]
    tensors: tuple[Tensor, ...]
    data: bytes


def seed_specs() -> tuple[ModelSpec, ...]:
    """Models of a few kilobytes that cover every kind of attention, both layouts, both gating functions, with and
    without YaRN, fused experts, and layers that differ."""
    small: dict[str, Any] = {"num_layers": 2, "hidden": 32, "vocab_size": 288}
    dense: dict[str, Any] = {"dense_width": 32}
    latent: dict[str, Any] = {"kv_lora_rank": 32, "nope_dim": 16, "v_dim": 16}
    v3 = changed(V3_SPEC, **small, **dense, **latent)
    lite = changed(V2_LITE_SPEC, **small, **dense, **latent)
    grouped = [changed(QWEN3_SPEC, **small), changed(GLM_SPEC, **small, **dense)]
    sparse = [changed(spec, **small, **dense, **latent) for spec in (V32_SPEC, GLM_DSA_SPEC)]
    windowed = [replace(spec, hidden=32, vocab_size=288) for spec in (GPT_OSS_SPEC, STEP_SPEC, MIMO_SPEC, LAGUNA_SPEC)]
    recurrent = [
        replace(spec, hidden=32, vocab_size=288) for spec in (QWEN3_NEXT_SPEC, KIMI_LINEAR_SPEC, GLM_NEXT_SPEC)
    ]
    recurrent.append(changed(V4_SPEC, hidden=32, vocab_size=288))
    recurrent.append(with_small_table(replace(FLASH_NEXT_SPEC, vocab_size=288)))
    return v3, lite, changed(v3, yarn=None, is_fused=True, tied_output=True), *grouped, *sparse, *windowed, *recurrent


@cache
def seeds() -> tuple[Content, ...]:
    """The valid files, parsed."""
    return (*(_taken_apart(write_seed(spec)) for spec in seed_specs()), _taken_apart(_seed_with_scales()))


def _seed_with_scales() -> bytes:
    """Experts and a matrix that every token uses, each with its scales."""
    spec = changed(seed_specs()[0], hidden=64)
    matrices = {"blk.1.ffn_up_exps": spec.routing.num_experts, "blk.1.ffn_gate_shexp": 1}
    return _write(
        spec,
        types={f"{name}.weight": GgmlType.NVFP4 for name in matrices},
        shapes={f"{name}.scale": (count,) for name, count in matrices.items()},
    )


@cache
def write_seed(spec: ModelSpec, **keys: Any) -> bytes:
    """A valid file of `spec` with a vocabulary and a template, and with `keys` changed."""
    return _write(spec, keys)


def _write(
    spec: ModelSpec,
    keys: dict[str, Any] | None = None,
    shapes: dict[str, tuple[int, ...] | None] | None = None,
    **tensors: Any,
) -> bytes:
    vocabulary = byte_metadata(merges=((b"a", b"b"), (b"ab", b"c")), num_unused=4)
    metadata = {**vocabulary, "tokenizer.chat_template": _TEMPLATE, **(keys or {})}
    shapes = {ROPE_FACTORS: None, **(shapes or {})}  # factors of zero would be rejected
    with TemporaryDirectory() as folder:
        return write_model(Path(folder) / "m.gguf", spec, metadata=metadata, shapes=shapes, **tensors).read_bytes()


def make_case(rng: random.Random) -> bytes:
    """A damaged file."""
    content = rng.choice(seeds())
    if rng.random() < 0.35:
        return hostile.change_bytes(_put_together(content), rng, end=_header_bytes(content))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice((_change_value, _change_value, _change_value, _change_fields, _change_tensor))
        content = change(content, rng)
    whole = _put_together(content)
    return hostile.change_bytes(whole, rng, end=_header_bytes(content)) if rng.random() < 0.1 else whole


def _change_value(content: Content, rng: random.Random) -> Content:
    fields = list(content.fields)
    at = rng.randrange(len(fields))
    field = fields[at]
    kind = rng.random()
    if kind < 0.5 and field.kind in _SCALARS:  # in range for its own type
        fields[at] = replace(field, value=_fitting(field.kind, hostile.value(rng), rng))
    elif kind < 0.85:
        fields[at] = _field(field.key, hostile.value(rng), rng)
    elif field.kind == GGUFValueType.ARRAY and field.value:
        values = list(field.value)
        place = rng.randrange(len(values))
        match rng.randrange(4):
            case 0:
                values[place] = _fitting(field.item, hostile.value(rng), rng)
            case 1:
                values[place] = values[rng.randrange(len(values))]
            case 2:
                del values[place:]
            case _:
                values = values * rng.choice((2, 20))
        fields[at] = replace(field, value=tuple(values))
    else:
        other = rng.choice(fields)
        fields[at] = replace(other, key=field.key)
    return replace(content, fields=tuple(fields))


def _change_fields(content: Content, rng: random.Random) -> Content:
    fields = list(content.fields)
    at = rng.randrange(len(fields))
    match rng.randrange(5):
        case 0 | 1:
            del fields[at]
        case 2:
            fields.append(fields[at])
        case 3:
            fields[at] = replace(fields[at], key=str(hostile.value(rng))[:5000])
        case _:
            key = rng.choice(_MORE_KEYS)
            fields.append(_field(key, hostile.value(rng), rng))
    return replace(content, fields=tuple(fields))


_MORE_KEYS = (
    "general.alignment",
    "split.no",
    "split.count",
    "split.tensors.count",
    "deepseek2.nextn_predict_layers",
    "deepseek2.attention.sliding_window",
    "deepseek2.attention.indexer.top_k",
    "deepseek2.attention.temperature_scale",
    "deepseek2.attention.temperature_length",
    "deepseek2.rope.scaling.yarn_attn_factor",
    "deepseek2.rope.scaling.yarn_log_multiplier",
    "gpt-oss.attention.sliding_window_pattern",
    "gpt-oss.attention.key_length_swa",
    "gpt-oss.rope.scaling.yarn_beta_fast",
    "step35.attention.value_length_swa",
    "step35.rope.dimension_count_swa",
    "mimo2.attention.key_length_swa",
    "mimo2.expert_gating_func",
    "qwen3next.full_attention_interval",
    "qwen3next.attention.recurrent_layers",
    "qwen3next.ssm.state_size",
    "kimi-linear.attention.head_count_kv",
    "kimi-linear.kda.head_dim",
    "kimi-linear.kda.gate_lower_bound",
    "glm5-next.kda.gate_lower_bound",
    "glm5-next.attention.indexer.kpool",
    "glm5-next.hyper_connection.count",
    "glm5-next.hyper_connection.sinkhorn_iterations",
    "deepseek4.attention.compress_ratios",
    "deepseek4.attention.output_group_count",
    "deepseek4.hash_layer_count",
    "deepseek4.swiglu_clamp_exp",
    "qwen4exp.attention.compress_ratios",
    "qwen4exp.hyper_connection.low_rank",
    "qwen4exp.ple.head_offsets",
    "qwen4exp.ple.layers",
    "laguna.attention.sliding_window_pattern",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.unknown",
)


def _change_tensor(content: Content, rng: random.Random) -> Content:
    tensors = list(content.tensors)
    at = rng.randrange(len(tensors))
    tensor = tensors[at]
    block = rng.choice(("x", "\u00b2\u00b9", "9" * 5000, "9" * 30, "-1", "\u0663", "", "01", "2", "7", "4294967296"))
    names = (f"blk.{block}.attn_norm.weight", f"blk.{block}.ffn_gate_inp.weight", f"blk.{block}", "blk", "", "a" * 70)
    match rng.randrange(8):
        case 0:
            tensors[at] = replace(tensor, name=rng.choice((*names, str(hostile.value(rng))[:100])))
        case 1 | 2:
            tensors.append(replace(tensor, name=rng.choice(names), dims=(8,), kind=0, offset=len(content.data)))
            content = replace(content, data=content.data + bytes(32))
        case 3:
            del tensors[at]
        case 4:
            dims = list(tensor.dims)
            dims[rng.randrange(len(dims))] = _fitting(GGUFValueType.UINT64, hostile.value(rng), rng)
            tensors[at] = replace(tensor, dims=tuple(dims))
        case 5:
            tensors[at] = replace(tensor, dims=tuple(rng.sample(tensor.dims, len(tensor.dims))))
        case 6:
            tensors[at] = replace(tensor, kind=rng.choice((*range(45), 2**32 - 1)))
        case _:
            tensors[at] = replace(tensor, offset=rng.choice((0, 1, 31, 32, 2**63, 2**64 - 32, len(content.data))))
    return replace(content, tensors=tuple(tensors))


# --- bytes ------------------------------------------------------------------------------------------------------


def _taken_apart(data: bytes) -> Content:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "m.gguf"
        file.write_bytes(data)
        reader = GGUFReader(file)
        fields = tuple(
            Field(
                name,
                field.types[0],
                tuple(field.contents()) if field.types[0] == GGUFValueType.ARRAY else field.contents(),
                field.types[-1] if field.types[0] == GGUFValueType.ARRAY else 0,
            )
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.")
        )
        tensors = tuple(
            Tensor(
                tensor.name,
                tuple(int(dim) for dim in tensor.shape),
                int(tensor.tensor_type),
                int(tensor.data_offset) - int(reader.data_offset),
            )
            for tensor in reader.tensors
        )
        return Content(fields, tensors, data[reader.data_offset :])


def _put_together(content: Content) -> bytes:
    header = _header(content)
    return header + bytes(-len(header) % _ALIGNMENT) + content.data


def _header_bytes(content: Content) -> int:
    return len(_header(content))


def _header(content: Content) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(content.tensors), len(content.fields))]
    for field in content.fields:
        parts += [_text(field.key), struct.pack("<I", field.kind)]
        if field.kind == GGUFValueType.ARRAY:
            parts += [struct.pack("<IQ", field.item, len(field.value))]
            parts += [_packed(field.item, item) for item in field.value]
        else:
            parts.append(_packed(field.kind, field.value))
    for tensor in content.tensors:
        dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        parts += [_text(tensor.name), dims, struct.pack("<IQ", tensor.kind, tensor.offset)]
    return b"".join(parts)


def _text(text: str) -> bytes:
    data = text.encode("utf-8", errors="surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _packed(kind: int, value: Any) -> bytes:
    if kind == GGUFValueType.STRING:
        return _text(value)
    return struct.pack(f"<{_SCALARS[GGUFValueType(kind)]}", value)


def _fitting(kind: int, value: Any, rng: random.Random) -> Any:
    """Returns the value or another one that the type can hold."""
    try:
        _packed(kind, value)
    except (struct.error, OverflowError, AttributeError, TypeError, UnicodeError):
        if kind == GGUFValueType.STRING:
            return rng.choice(hostile.TEXTS)
        return rng.choice((0, 1, 2, 3, 100, 127)) if kind != GGUFValueType.BOOL else rng.random() < 0.5
    return value


def _field(key: str, value: Any, rng: random.Random) -> Field:
    """A key with a value of any type."""
    if isinstance(value, bool):
        return Field(key, GGUFValueType.BOOL, value)
    if isinstance(value, str):
        return Field(key, GGUFValueType.STRING, value)
    if isinstance(value, (int, float)):
        kind = rng.choice(list(_SCALARS))
        return Field(key, kind, _fitting(kind, value, rng))
    item = rng.choice((GGUFValueType.STRING, *_SCALARS))
    count = rng.choice((0, 1, 2, 288, 3000))
    return Field(key, GGUFValueType.ARRAY, tuple(_fitting(item, hostile.value(rng), rng) for _ in range(count)), item)
