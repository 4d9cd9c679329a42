"""Answers the requests of a batch as the server answers them, without HTTP."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping

from ballast.batch.lines import Answer
from ballast.engine.engine import Engine
from ballast.errors import BallastError, RequestError
from ballast.generation.admitted_job import admitted
from ballast.generation.cancellation import DeadlineExceededError, bounded
from ballast.generation.endpoints import Endpoints, Prepared
from ballast.generation.priority import granted
from ballast.generation.text_threads import TextThreads
from ballast.prepared_model import PreparedModel
from ballast.wire.body_size import default_body_bytes, too_large
from ballast.wire.envelopes import envelope_of
from ballast.wire.errors import RequestTimeoutError, error_reply
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.ignored_log import IgnoredFieldsLog
from ballast.wire.json_text import to_json
from ballast.wire.reply import written

log = logging.getLogger(__name__)

Endpoint = Callable[[Endpoints, bytes, IgnoredFields], Prepared]

_ENDPOINTS: Mapping[str, tuple[Endpoint, bool]] = {
    "/v1/chat/completions": (Endpoints.chat_completion, True),
    "/v1/completions": (Endpoints.completion, False),
    "/v1/responses": (Endpoints.response, True),
    "/v1/messages": (Endpoints.message, True),
}
"""By URL, with a flag: whether the endpoint may render a template."""

URLS = tuple(_ENDPOINTS)


class Answers:
    """Answers requests with one engine, all as the same client."""

    def __init__(
        self, model: PreparedModel, engine: Engine, threads: TextThreads, shutting_down: asyncio.Future[None]
    ) -> None:
        """`shutting_down`: is done when running requests must fail."""
        server = model.config.server
        self._engine = engine
        self._endpoints = Endpoints.of(model, engine.limits)
        self._tokenizer = model.text.tokenizer
        self._threads = threads
        self._shutting_down = shutting_down
        self._timeout_s = server.request_timeout_s
        self._refuses_unknown = server.unknown_fields == "refuse"
        self._priorities = model.config.scheduling.client_priority
        self._max_body_bytes = server.max_body_bytes
        if self._max_body_bytes is None:
            self._max_body_bytes = default_body_bytes(engine.limits.max_model_tokens)
        self._ignored_log = IgnoredFieldsLog()
        engine.count_arriving = lambda: threads.num_arriving

    async def answer(self, url: str, body: bytes) -> Answer:
        """The reply, or the error, to a request whose URL is one of URLS."""
        request_id = uuid.uuid4().hex
        ignored = IgnoredFields(refuse_unknown=self._refuses_unknown)
        try:
            async with bounded(self._timeout_s or None, self._shutting_down):
                return Answer(200, request_id, await self._generated(url, body, request_id, ignored))
        except DeadlineExceededError:
            return _refused(url, request_id, RequestTimeoutError(self._timeout_s))
        except Exception as error:  # noqa: BLE001  one request that fails must not end the batch
            return _refused(url, request_id, error)
        finally:
            if ignored:
                self._ignored_log.note(ignored)

    async def _generated(self, url: str, body: bytes, request_id: str, ignored: IgnoredFields) -> bytes:
        assert self._max_body_bytes is not None
        if len(body) > self._max_body_bytes:
            raise RequestError(too_large(self._max_body_bytes), status=413)
        endpoint, is_chat = _ENDPOINTS[url]
        prepared = await self._threads.run(is_chat, endpoint, self._endpoints, body, ignored)
        job = granted(prepared, ignored, self._priorities, client=0)
        with admitted(self._engine, job, request_id, self._tokenizer) as generation:
            choices = await generation.whole()
            return await written(prepared.reply.whole, choices, generation)


def _refused(url: str, request_id: str, error: Exception) -> Answer:
    reply = error_reply(error)
    if not isinstance(error, BallastError | RequestTimeoutError):
        log.error("request failed", exc_info=error, extra={"request_id": request_id, "path": url})
    envelope = envelope_of(url)
    body = reply.body if envelope is None else envelope(reply.status, reply.body, request_id)
    return Answer(reply.status, request_id, to_json(body), float(reply.headers.get("Retry-After", 0)))
