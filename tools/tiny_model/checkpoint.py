"""Writes the built-in model as a Hugging Face checkpoint, float32 safetensors with config.json and the tokenizer:
`python -m tools.tiny_model.checkpoint DIRECTORY`."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from ballast.tiny.builtin import BUILT_IN, joint_tensors
from ballast.tiny.weights import Floats

# GGUF name → checkpoint name of tensors that correspond one to one.
_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_EXPERTS = re.compile(r"ffn_(gate|up|down)_exps")


def write_safetensors(directory: Path) -> Path:
    """Writes model.safetensors with the shipped file's weights, dequantised, and the config files. Returns
    `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    named = {name: values for tensor in joint_tensors(BUILT_IN.gguf) for name, values in _named(*tensor)}
    save_file(named, directory / "model.safetensors", metadata={"format": "pt"})
    for file in BUILT_IN.config_dir.iterdir():
        shutil.copy(file, directory)
    return directory


def _named(name: str, values: Floats) -> Iterator[tuple[str, Floats]]:
    if name in _GLOBAL_NAMES:
        yield _GLOBAL_NAMES[name], values
        return
    _, layer, part, _ = name.split(".")
    prefix = f"model.layers.{layer}."
    experts = _EXPERTS.fullmatch(part)
    if experts:
        for number, one in enumerate(values):
            yield f"{prefix}mlp.experts.{number}.{experts[1]}_proj.weight", np.ascontiguousarray(one)
    elif part == "exp_probs_b":
        yield f"{prefix}mlp.gate.e_score_correction_bias", values
    else:
        yield f"{prefix}{_BLOCK_NAMES[part]}.weight", values


if __name__ == "__main__":
    print(write_safetensors(Path(sys.argv[1])))
