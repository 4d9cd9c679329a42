"""The schemas of replies, for /openapi.json and for tests that validate replies against it.

Replies are written as bytes elsewhere; nothing is validated while serving.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

TextFinish = Literal["stop", "length", "content_filter"]
ChatFinish = Literal["stop", "length", "content_filter", "tool_calls"]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class TokenDetails(_Open):
    """Details of a token count."""


class UsageReply(_Open):
    """The token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_cache_hit_tokens: int
    """As in DeepSeek's API: prompt tokens from the cache."""
    prompt_cache_miss_tokens: int
    """As in DeepSeek's API: prompt tokens that were computed."""
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None


class Message(_Open):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(_Open):
    """One answer."""

    index: int
    message: Message
    logprobs: dict[str, Any] | None
    """`content`, and in `reasoning_content`, as in DeepSeek's API, the reasoning's tokens with its tags and the line
    breaks after them. `content` includes the tokens that ended the reply."""
    finish_reason: ChatFinish
    token_ids: list[int] | None = None
    """As in text completions."""


class ChatCompletion(_Open):
    """Reply of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageReply


class TextChoice(_Open):
    """One continuation."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    """One entry per token that `usage` counts, after the entries of an echoed prompt."""
    finish_reason: TextFinish
    token_ids: list[int] | None = None
    """With return_token_ids, or if the model has no vocabulary: every generated token, including the end token."""


class TextCompletion(_Open):
    """Reply of POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: UsageReply


class AnthropicMessage(_Open):
    """Reply of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: dict[str, int]


class TokenCount(BaseModel):
    """Reply of POST /v1/messages/count_tokens."""

    input_tokens: int


class AnthropicErrorDetail(BaseModel):
    """An error in Anthropic's format."""

    type: str
    message: str


class AnthropicError(BaseModel):
    """Every error on the paths of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


class ResponseObject(_Open):
    """Reply of POST /v1/responses."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["completed", "incomplete"]
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class InputTokens(BaseModel):
    """Reply of POST /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ModelCard(BaseModel):
    """One name under which the model is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """Reply of GET /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class AnthropicModel(BaseModel):
    """One name under which the model is served, in Anthropic's format."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int
    capabilities: None


class AnthropicModelList(BaseModel):
    """Reply of GET /v1/models to a request with Anthropic's header."""

    data: list[AnthropicModel]
    has_more: Literal[False]
    first_id: str
    last_id: str


class Status(_Open):
    """Whether the process is alive or ready, and otherwise the reason."""

    status: str
    reason: str | None = None
    progress: float | None = Field(None, ge=0, le=1)


class Version(BaseModel):
    """The program's version."""

    version: str


class EngineView(_Open):
    """The engine's numbers, the running requests and the first waiting ones."""

    state: str
    device: str
    """The device of the model: cpu, cuda:N, or several GPUs separated by commas."""
    devices: list[dict[str, Any]]
    """The GPUs in the order of their layers, each with its counters."""
    planned_bytes: dict[str, int]
    """The memory that `ballast plan` predicts, by location: host, and device if there is one."""
    load_progress: float
    preparing: int
    switched_off: dict[str, str]
    """GPU features that were switched off at start, with the reason."""
    snapshot_positions: list[int]
    """The number of tokens before each recurrent state that is kept for later requests, of the 100 used last."""
    kv_tiers: list[dict[str, Any]]
    """The tiers of the KV cache in host memory and on disk, fastest first."""
    step_costs: dict[str, list[dict[str, float]]]
    """Costs of steps by lane, each with its number of `tokens` and its `seconds`: decode, decode_in_pass while a pass
    runs, prefill, and prefill_during_decode while the decode lane computes."""
    numbers: dict[str, float | bool]
    requests: list[dict[str, Any]]


class NumaView(_Open):
    """CPUs of the threads and NUMA nodes of the memory and the GPUs."""

    cpus: str
    gpus: list[dict[str, Any]]
    """The GPUs that the model uses, each with its `name`, `product` and NUMA `node`; null for unknown values."""
    nodes: list[dict[str, Any]]
    threads: list[dict[str, Any]]
