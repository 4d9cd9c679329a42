"""API keys: the valid keys, their permissions, and the middleware that requires one."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ballast.config.whole_range import WholeRange
from ballast.errors import ConfigError
from ballast.server.http.client_number import client_number
from ballast.server.http.error_response import error_response
from ballast.server.http.watched_file import WatchedFile
from ballast.server.requests.record import Record
from ballast.wire.errors import ErrorReply, error_body

MAX_FILE_BYTES = 1 << 20
MAX_AGE_S = 1.0
"""A key that is removed from the file is rejected at most this long afterwards."""

_KEY = re.compile(r"[\x21-\x7e]+")
_BEARER = re.compile(r"bearer +(\S+) *", re.IGNORECASE)

_PRIORITY = "priority="


@dataclass(frozen=True, slots=True)
class Key:
    """A valid key."""

    digest: bytes
    client_priority: WholeRange | None = None
    """None: the server's --client_priority applies."""


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys in a file, each on a line of its own as KEY or KEY priority=LOW..HIGH. Empty lines and lines that begin
    with # are skipped.

    Raises OSError, and ValueError with a message that contains no key.
    """
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"is larger than {MAX_FILE_BYTES} bytes; expected one API key per line")
    keys = []
    for number, line in enumerate(data.decode("utf-8-sig", errors="replace").splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            keys.append(_read_line(words, number))
    if not keys:
        raise ValueError("contains no keys; add one per line or omit --api_key_file")
    return tuple(keys)


def _read_line(words: Sequence[str], number: int) -> Key:
    key, *settings = words
    if not _KEY.fullmatch(key) or len(settings) > 1 or not all(word.startswith(_PRIORITY) for word in settings):
        raise ValueError(
            f"line {number} is not a key: expected printable ASCII characters without spaces, optionally followed by "
            f"{_PRIORITY}LOW..HIGH"
        )
    try:
        return Key(_digest(key), *(WholeRange.parse(word.removeprefix(_PRIORITY)) for word in settings))
    except ValueError:
        raise ValueError(
            f"line {number}: {_PRIORITY} needs two whole numbers as LOW..HIGH, such as {_PRIORITY}-5..5"
        ) from None


class Keys:
    """The keys that are valid now. Raises ConfigError when the file is not usable at the start."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = WatchedFile(path, read_keys, max_age_s=MAX_AGE_S)
        except OSError as error:
            raise ConfigError("api_key_file", path, f"cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError("api_key_file", path, str(error)) from None

    async def find(self, key: str) -> Key | None:
        """The valid key equal to `key`. Takes constant time, so that timing reveals nothing about the keys."""
        digest = _digest(key)
        # Compare with all keys, even after a match.
        found = [valid for valid in await self._file.value() if hmac.compare_digest(digest, valid.digest)]
        return found[0] if found else None


class KeyGuard:
    """Passes on requests with a valid key, and answers others with a 401. The key is sent as `Authorization: Bearer
    KEY` or, by Anthropic's clients, as `X-Api-Key: KEY`."""

    def __init__(self, app: ASGIApp, keys: Keys, open_paths: frozenset[str]) -> None:
        """`open_paths` need no key."""
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        key = _key_of(Headers(scope=scope))
        found = None if key is None else await self._keys.find(key)
        if found is not None:
            record: Record = scope["state"]["record"]
            record.client = client_number(found.digest)
            record.client_priority = found.client_priority
            await self._app(scope, receive, send)
            return
        missing = "this server requires an API key; send it as Authorization: Bearer KEY"
        reply = ErrorReply(
            401,
            error_body(
                missing if key is None else "the API key is not valid here",
                error_type="authentication_error",
                code="invalid_api_key",
            ),
            {"WWW-Authenticate": "Bearer"},
        )
        await error_response(reply)(scope, receive, send)


def _key_of(headers: Headers) -> str | None:
    bearer = _BEARER.fullmatch(headers.get("authorization", ""))
    return bearer[1] if bearer else headers.get("x-api-key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()
