"""The library: a model in this process, without a server. Classes and parameters have the names of vLLM's `LLM` where
both have an equivalent."""

from ballast.library.async_llm import AsyncLLM
from ballast.library.llm import LLM
from ballast.library.outputs import CompletionOutput, Logprob, RequestOutput, ToolCall
from ballast.library.params import GuidedDecodingParams, RequestOutputKind, SamplingParams, StructuredOutputsParams
from ballast.library.prompts import TextPrompt, TokensPrompt

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
]
