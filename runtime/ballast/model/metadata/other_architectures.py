"""The message about a file whose architecture is not served."""

from __future__ import annotations

from ballast.errors import shown
from ballast.families.registry import ARCHITECTURES

LOOK_ALIKES = {
    "deepseek": "DeepSeek MoE, the model before V2, without latent attention",
    "deepseek2-ocr": "DeepSeek OCR, not DeepSeek V2 or V3",
    "qwen35": "a dense Qwen3.5, not a mixture of experts",
    "qwen3vlmoe": "Qwen3-VL, which sees images",
    "qwen3vl": "a dense Qwen3-VL, which sees images",
    "kimi-k3": "Kimi K3, another architecture than K2",
    "bailingmoe": "Ling (Bailing MoE)",
    "bailingmoe2": "Ling 2.0 or Ring 2.0",
    "bailingmoe3": "Ling 3.0",
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
    "llama": "a dense Llama, or Mixtral",
    "llama4": "Llama 4, some of whose layers have no positions",
    "gemma4": "Gemma 4",
    "nemotron_h_moe": "Nemotron 3, with Mamba 2",
    "ernie4_5-moe": "ERNIE 4.5 MoE",
    "granitemoe": "Granite",
    "granitehybrid": "Granite 4, with Mamba 2",
    "grok": "Grok",
    "dflash": "a draft model for another model",
}
"""Architectures that users take for a served one, or expect to be served. Names that begin with one of these, such as
deepseek41, get its hint as a relative of it."""


def refusal(name: object) -> str:
    """The problem with `general.architecture` = `name`, for a ModelError: one line."""
    problem = f"general.architecture={shown(name)}"
    supported = f"supported are {', '.join(ARCHITECTURES)}"
    if not isinstance(name, str):
        return f"{problem}; {supported}"
    if name not in LOOK_ALIKES:
        spelled = next((each for each in ARCHITECTURES if _bare(each) == _bare(name)), None)
        if spelled is not None:
            return f"{problem}; did you mean {spelled}?"
    return f"{problem}{_hint(name)}; {supported}"


def _bare(name: str) -> str:
    """`name` without upper case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def _hint(name: str) -> str:
    """A clause that describes an architecture which is often confused with a served one; "" for others."""
    if name in LOOK_ALIKES:
        return f", which is {LOOK_ALIKES[name]}"
    related = max((each for each in (*LOOK_ALIKES, *ARCHITECTURES) if name.startswith(each)), key=len, default=None)
    if related is None:
        return ""
    if related in ARCHITECTURES:
        return f", which is another architecture than {related}"
    return f", a relative of {related}, which is {LOOK_ALIKES[related]}"
