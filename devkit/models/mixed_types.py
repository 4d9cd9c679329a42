"""A tiny model whose matrices are of all types that are read, in turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFReader, GGUFWriter
from gguf import GGMLQuantizationType as GgmlType

from ballast.tiny.model import TinyModel
from devkit.models.random_blocks import FORMATS, dequantized, random_blocks


def with_all_types(model: TinyModel, path: Path, seed: int = 0) -> tuple[TinyModel, set[GgmlType]]:
    """The model, in floats, written once more to `path`: each matrix is random blocks of another type, whose weights
    are as large as the old ones'. Returns it and its types. Norms, biases and routers stay as they are."""
    reader, rng = GGUFReader(model.gguf), np.random.default_rng(seed)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(path, architecture)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            item = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], item)
    turns = [kind for kind in FORMATS if kind != GgmlType.F32]
    written: set[GgmlType] = set()
    for tensor in reader.tensors:
        values = np.asarray(tensor.data, np.float32)
        fitting = [kind for kind in turns if values.shape[-1] % GGML_QUANT_SIZES[kind][0] == 0]
        if values.ndim < 2 or tensor.name.endswith("ffn_gate_inp.weight") or not fitting:
            writer.add_tensor(tensor.name, values)
            continue
        kind = fitting[0]
        turns.remove(kind)
        turns.append(kind)
        written.add(kind)
        data = _blocks(rng, kind, values)
        shape = gguf.quant_shape_to_byte_shape(values.shape, kind)
        writer.add_tensor(tensor.name, data.reshape(shape), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return replace(model, gguf=path), written


def _blocks(rng: np.random.Generator, kind: GgmlType, values: np.ndarray) -> np.ndarray:
    """Random blocks of as many weights as `values`, and as large."""
    rows, cols = values.size // values.shape[-1], values.shape[-1]
    if GGML_QUANT_SIZES[kind][0] == 1:
        return gguf.quants.quantize(values, kind).view(np.uint8)
    probe = 2.0**-9
    size = float(np.sqrt(np.mean(dequantized(random_blocks(rng, kind, 16, cols, probe), kind) ** 2)))
    return random_blocks(rng, kind, rows, cols, probe * float(np.sqrt(np.mean(values**2))) / size)
