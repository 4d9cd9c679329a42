"""The library: a model in this process, without a server. Names are those of vLLM's `LLM` where both have the thing."""

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
