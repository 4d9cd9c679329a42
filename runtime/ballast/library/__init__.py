"""The library: a model in this process, without a server. Names are those of vLLM's `LLM` where both have the thing."""

from ballast.library.llm import LLM
from ballast.library.outputs import CompletionOutput, Logprob, RequestOutput, ToolCall
from ballast.library.params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams", "ToolCall"]
