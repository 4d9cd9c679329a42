"""The endpoints that generate: each turns a body into a job and the writer of its reply. No HTTP.

Their methods tokenise, and must not run on the event loop. They raise RequestError.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ballast.config.options import ReasoningField
from ballast.engine.limits import Limits
from ballast.errors import RequestError
from ballast.generation.job import Job
from ballast.generation.model_names import ModelNames
from ballast.generation.request_builder import RequestBuilder
from ballast.prepared_model import PreparedModel
from ballast.wire.anthropic.reply import AnthropicReply
from ballast.wire.anthropic.request import parse_messages
from ballast.wire.anthropic.request import to_chat as message_to_chat
from ballast.wire.field_names import RESPONSES_FIELDS, client_field_names
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.llama_cpp.reply import LlamaReply
from ballast.wire.llama_cpp.request import InfillRequest, LlamaRequest, parse_llama
from ballast.wire.openai import reply as openai
from ballast.wire.openai.logprobs import TokenBytes
from ballast.wire.openai.request import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    StreamOptions,
    parse_body,
)
from ballast.wire.reply import EVENT_STREAM, Framing, Reply
from ballast.wire.responses.reply import ResponsesReply
from ballast.wire.responses.request import parse_responses
from ballast.wire.responses.request import to_chat as response_to_chat

_REASONING_FIELDS: Mapping[ReasoningField, Sequence[str]] = {
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "both": ("reasoning_content", "reasoning"),
    "none": (),
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked and tokenised request, and the writer of its reply."""

    job: Job
    reply: Reply
    stream: bool
    names: Mapping[str, str] = field(default_factory=dict)
    """The client's field names; see `client_field_names`."""
    framing: Framing = EVENT_STREAM
    """How a stream is sent."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The endpoints of one model."""

    builder: RequestBuilder
    names: ModelNames
    max_model_tokens: int
    """Most tokens of one request, prompt and reply together."""
    reasoning_fields: Sequence[str]
    """The fields of chat completions that carry the reasoning."""

    @classmethod
    def of(cls, model: PreparedModel, limits: Limits) -> Endpoints:
        """The endpoints of a model whose engine has the given limits."""
        options = model.config.model
        reasoning_fields = _REASONING_FIELDS[options.reasoning_field]
        builder = RequestBuilder(
            model.text,
            limits,
            options.force_think,
            split_reasoning=bool(reasoning_fields),
            trust_templates=options.trust_request_chat_template,
            keeps_snapshots=model.has_states,
        )
        names = ModelNames(options.served_model_name or (model.name,), options.strict_model_name)
        return cls(builder, names, limits.max_model_tokens, reasoning_fields)

    def chat_completion(self, data: bytes, ignored: IgnoredFields) -> Prepared:
        """Answer a conversation, in OpenAI's format."""
        body = parse_body(ChatCompletionRequest, data, self.max_model_tokens, ignored)
        model = self.names.for_reply(body.model)
        format_ = openai.ChatFormat(self.reasoning_fields, body.custom_tools)
        return self._completion(body, self.builder.chat(body), model, "chatcmpl", format_)

    def completion(self, data: bytes, ignored: IgnoredFields) -> Prepared:
        """Continue a text, in OpenAI's format."""
        body = parse_body(CompletionRequest, data, self.max_model_tokens, ignored)
        model = self.names.for_reply(body.model)
        return self._completion(body, self.builder.completion(body), model, "cmpl", openai.TextFormat())

    def response(self, data: bytes, ignored: IgnoredFields) -> Prepared:
        """Answer with a response, which is not stored."""
        body = parse_responses(data, self.max_model_tokens, ignored)
        model = self.names.for_reply(body.model)
        with client_field_names(RESPONSES_FIELDS):
            chat, called = response_to_chat(body, ignored)
            job = self.builder.chat(chat, split_reasoning=True)
        reply_id = f"resp_{body.request_id or uuid.uuid4().hex}"
        reply = ResponsesReply(reply_id, int(time.time()), model, body, called, self._token_bytes)
        return Prepared(job, reply, bool(body.stream), RESPONSES_FIELDS)

    def response_tokens(self, data: bytes, ignored: IgnoredFields) -> int:
        """Number of prompt tokens of a response."""
        body = parse_responses(data, self.max_model_tokens, ignored)
        self.names.for_reply(body.model)
        with client_field_names(RESPONSES_FIELDS):
            chat, _ = response_to_chat(body, ignored)
            return len(self.builder.chat_prompt(chat).ids)

    def message(self, data: bytes, ignored: IgnoredFields) -> Prepared:
        """Answer a conversation, in Anthropic's format."""
        body = parse_messages(data, self.max_model_tokens, ignored)
        if body.max_tokens is None:
            raise RequestError("max_tokens: this field is required", param="max_tokens")
        self.names.for_reply(body.model)
        with client_field_names(body.error_names):
            job = self.builder.chat(message_to_chat(body, ignored), split_reasoning=True)
        reply = AnthropicReply(f"msg_{uuid.uuid4().hex}", body.model)
        return Prepared(job, reply, bool(body.stream), body.error_names)

    def message_tokens(self, data: bytes, ignored: IgnoredFields) -> int:
        """Number of prompt tokens of a message."""
        body = parse_messages(data, self.max_model_tokens, ignored)
        self.names.for_reply(body.model)
        with client_field_names(body.error_names):
            return len(self.builder.chat_prompt(message_to_chat(body, ignored)).ids)

    def llama_completion(self, data: bytes, ignored: IgnoredFields) -> Prepared:
        """Continue a text, in llama.cpp's format and with its defaults."""
        body = parse_llama(LlamaRequest, data, self.max_model_tokens, ignored)
        prompts = [prompt if isinstance(prompt, str) else "" for prompt in body.prompt]
        return self._llama(body, self.builder.completion(body), prompts)

    def infill(self, data: bytes, ignored: IgnoredFields) -> Prepared:
        """Fill the gap between two texts, in llama.cpp's format."""
        body = parse_llama(InfillRequest, data, self.max_model_tokens, ignored)
        return self._llama(body, self.builder.infill(body), [""] * len(body.prompt))

    def _completion(
        self, body: GenerationRequest, job: Job, model: str, prefix: str, format_: openai.Format
    ) -> Prepared:
        options = body.stream_options or StreamOptions()
        shape = openai.Shape(
            num_choices=job.num_choices,
            logprobs=job.sampling.logprobs is not None,
            include_usage=bool(options.include_usage),
            continuous_usage=bool(options.continuous_usage_stats),
            timings_per_token=bool(body.timings_per_token),
            # Without a vocabulary, a reply can only contain token ids.
            token_ids=bool(body.return_token_ids) or not self.builder.text.tokenizer.has_vocabulary,
            tokens_as_ids=bool(body.return_tokens_as_token_ids),
            prompt_logprobs=body.prompt_logprobs is not None,
            prompt_ids=tuple(prompt.ids for prompt in job.prompts) if body.return_token_ids else (),
        )
        reply_id = f"{prefix}-{body.request_id or uuid.uuid4().hex}"
        reply = openai.Reply(reply_id, int(time.time()), model, format_, shape, self._token_bytes)
        return Prepared(job, reply, bool(body.stream))

    def _llama(self, body: LlamaRequest, job: Job, prompts: Sequence[str]) -> Prepared:
        reply = LlamaReply(
            self.names.for_reply(body.model),
            [prompts[job.prompt_of(choice)] for choice in range(job.num_choices)],
            job.sampling.max_tokens,
            self._token_bytes,
            bool(body.return_tokens),
            body.num_logprobs is not None,
            body.seed,
        )
        return Prepared(job, reply, bool(body.stream))

    @property
    def _token_bytes(self) -> TokenBytes:
        return self.builder.text.tokenizer.token_bytes
