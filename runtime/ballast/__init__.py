"""Ballast: DeepSeek-class mixture-of-experts models from one GPU and a lot of host memory.

`from ballast import LLM, SamplingParams` is the library; see docs/clients/python.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ballast.version import __version__

if TYPE_CHECKING:
    from ballast.library import (
        LLM,
        AsyncLLM,
        CompletionOutput,
        GuidedDecodingParams,
        Logprob,
        RequestOutput,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
        TextPrompt,
        TokensPrompt,
        ToolCall,
    )

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "GuidedDecodingParams",
    "Logprob",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "ToolCall",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import the library's names on first access: `ballast doctor` runs without any package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("ballast.library"), name)
