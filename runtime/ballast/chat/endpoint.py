"""A client of an OpenAI endpoint for `ballast chat`: the model's name, and replies piece by piece."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import openai

from ballast.chat.reasoning import ReasoningSplitter, ReplyPiece
from ballast.config.urls import is_http_url
from ballast.errors import ConfigError

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 600.0
"""Longest silence within a reply. A long prompt on a busy machine takes minutes."""


KEY_VARIABLE = "OPENAI_API_KEY"


def endpoint_url(text: str) -> str:
    """The URL of an endpoint as people write it: http unless it says otherwise, /v1 unless it has a path.

    Raises ConfigError for what is no URL.
    """
    whole = text if "://" in text else f"http://{text}"
    if not is_http_url(whole):
        raise ConfigError("url", text, "expected HOST:PORT or an http or https URL, without spaces")
    url = urlsplit(whole)
    return urlunsplit((url.scheme, url.netloc, url.path.rstrip("/") or "/v1", url.query, ""))


@dataclass(slots=True)
class Counts:
    """What the endpoint said of a reply."""

    tokens: int | None = None
    """Tokens of the reply; None where the endpoint does not count them."""


class EndpointError(Exception):
    """The endpoint cannot be reached, or refuses a request. The message is meant for the user."""


class Endpoint:
    """A connection, closed by leaving its context. `url` is the part before `/chat/completions`."""

    def __init__(self, url: str, api_key: str | None) -> None:
        timeout = openai.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        # The client insists on a key; a server without keys ignores it.
        self._client = openai.OpenAI(base_url=url, api_key=api_key or "none", timeout=timeout, max_retries=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def models(self) -> list[str]:
        """The names of the models that the endpoint lists, at least one. Raises EndpointError."""
        try:
            models = self._client.models.list().data
        except openai.OpenAIError as error:
            raise EndpointError(_message_of(error)) from error
        if not models:
            raise EndpointError("it lists no model")
        return [model.id for model in models]

    def reply(
        self, model: str, messages: Sequence[Mapping[str, str]], settings: Mapping[str, Any], counts: Counts
    ) -> Generator[ReplyPiece, None, None]:
        """The reply as it arrives; `settings` are further fields of the request, `counts` is filled in at the end.
        Raises EndpointError.

        Leaving the iteration closes the connection, which cancels the reply.
        """
        splitter = ReasoningSplitter()
        body: Any = {**settings, "model": model, "messages": list(messages), "stream": True}
        body["stream_options"] = {"include_usage": True}
        try:
            with self._client.chat.completions.create(**body) as chunks:
                for chunk in chunks:
                    if chunk.usage is not None:
                        counts.tokens = chunk.usage.completion_tokens
                    for choice in chunk.choices:
                        fields = choice.delta.model_extra or {}
                        reasoning = fields.get("reasoning_content") or fields.get("reasoning")
                        if reasoning:
                            yield ReplyPiece(str(reasoning), is_reasoning=True)
                        yield from splitter.push(choice.delta.content or "")
                yield from splitter.finish()
        except openai.OpenAIError as error:
            raise EndpointError(_message_of(error)) from error


def _message_of(error: openai.OpenAIError) -> str:
    if isinstance(error, openai.AuthenticationError):
        return f"status 401: {error.message}; the key comes from the environment variable {KEY_VARIABLE}"
    if isinstance(error, openai.APIStatusError):
        return f"status {error.status_code}: {error.message}"
    return str(error)
