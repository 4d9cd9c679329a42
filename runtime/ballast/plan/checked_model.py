"""Checks everything that a model's files declare, before anything is loaded.

`ballast plan` and `ballast serve` share these checks, so both accept the same models.
"""

from __future__ import annotations

from ballast.config.options import ModelConfig
from ballast.errors import ModelError
from ballast.model.metadata import read_config, read_spec
from ballast.model.spec import ModelSpec
from ballast.model.tensors import check_tensors
from ballast.text.loading import Text, load_text
from ballast.tiny import BUILT_IN
from ballast.weights.gguf import GgufModel, open_gguf


def open_checked(config: ModelConfig) -> tuple[GgufModel, ModelSpec]:
    """The model that the options select, or the built-in one, and its spec. All tensors that it needs exist.

    Raises ModelError, and ConfigError if another option would help.
    """
    gguf = open_gguf(config.gguf_path or BUILT_IN.gguf)
    spec = read_spec(gguf, None if config.model_path is None else read_config(config.model_path))
    check_tensors(gguf, spec)
    return gguf, spec


def load_checked_text(config: ModelConfig, gguf: GgufModel, spec: ModelSpec) -> Text:
    """The tokenizer and the chat template of the model. Raises as `open_checked` does."""
    text = load_text(
        config.model_path,
        gguf.metadata,
        str(gguf.path),
        config.chat_template,
        num_ids=spec.vocab_size,
        today=None if config.prompt_date == "today" else config.prompt_date,
    )
    if text.tokenizer.vocab_size > spec.vocab_size:
        raise ModelError(
            config.model_path or gguf.path,
            f"the tokenizer has {text.tokenizer.vocab_size} tokens and the model {spec.vocab_size} embedding rows "
            f"({gguf.path}); use the tokenizer of this model",
        )
    return text
