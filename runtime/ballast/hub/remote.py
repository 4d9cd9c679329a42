"""The client of a hub: lists repositories, and downloads files while it verifies them.

All files are downloaded with plain HTTP ranges. Hugging Face also serves files in its Xet storage this way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx2
from huggingface_hub import constants

from ballast.config.urls import is_http_url
from ballast.documents.small_file import DocumentError
from ballast.errors import ConfigError, ModelError, first_line, shown
from ballast.hub.apis import HubApi, HuggingFace, Listing, ModelScope
from ballast.hub.checksum import Checksum, Digest
from ballast.hub.errors import NotFoundError, TokenError, UnreachableError, WrongBytesError
from ballast.hub.naming import HUGGING_FACE, OCI, S3, SITES, HubFile, HubName
from ballast.hub.oci import Registry
from ballast.hub.progress import Progress
from ballast.hub.s3 import S3Store, endpoint_of_environment
from ballast.version import __version__

_HUGGING_FACE_URL = "https://huggingface.co"
REGISTRY = "the registry"
"""Replaces the endpoint if each name has its own."""
_ATTEMPTS = 5
"""Consecutive attempts without a new byte."""
_LONGEST_WAIT_S = 60.0
"""Longest wait before the next attempt. If a hub requires a longer one, the pull ends."""
_TIMEOUT_S = 30.0
"""Seconds without a byte after which a transfer counts as broken."""
_LISTING_S = 120.0
_LISTING_BYTES = 8 << 20
_READ_BYTES = 1 << 20


def _client() -> httpx2.Client:
    return httpx2.Client(
        follow_redirects=True,
        timeout=_TIMEOUT_S,
        headers={"User-Agent": f"ballast/{__version__}", "Accept-Encoding": "identity"},
    )


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub at `endpoint`, used with `token`. `cache` is the folder of its models."""

    endpoint: str
    cache: Path
    token: str | None = None
    is_offline: bool = False
    api: HubApi = field(default_factory=HuggingFace, compare=False)
    sleep: Callable[[float], None] = time.sleep
    client: httpx2.Client = field(default_factory=_client, compare=False)

    @staticmethod
    def of_environment(site: str = HUGGING_FACE) -> Hub:
        """The hub of a model's name. Hugging Face's is configured by HF_ENDPOINT, HF_TOKEN, HF_HUB_CACHE, HF_HOME,
        HF_HUB_OFFLINE and the token of `hf auth login`; ModelScope's by MODELSCOPE_DOMAIN, MODELSCOPE_API_TOKEN and
        MODELSCOPE_CACHE; an S3-compatible store by AWS_ENDPOINT_URL and AWS_REGION. Raises ConfigError."""
        is_offline = constants.is_offline_mode()
        if site == HUGGING_FACE:
            api: HubApi = HuggingFace()
            endpoint = constants.ENDPOINT.strip() or _HUGGING_FACE_URL
            _check_endpoint(api.endpoint_variable, endpoint)
            constants.ENDPOINT = endpoint  # the import below fails if it is not a URL
            from huggingface_hub import get_token

            token = get_token()
        elif site == S3:
            api, token = S3Store(), None
            endpoint = endpoint_of_environment()
            _check_endpoint(api.endpoint_variable, endpoint)
        elif site == OCI:
            api, endpoint, token = Registry(), REGISTRY, None
        else:
            api = ModelScope()
            domain = os.environ.get(api.endpoint_variable, "").strip() or site
            endpoint = domain if "://" in domain else f"https://{domain}"
            _check_endpoint(api.endpoint_variable, endpoint)
            token = os.environ.get(api.credential_variable, "").strip() or None
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError(
                api.credential_variable, "…", "has characters that are not allowed in a token; copy it again"
            )
        return Hub(endpoint.rstrip("/"), cache_of(site), token, is_offline, api)

    def listing(self, name: HubName) -> Listing:
        """The content of the name's revision. Raises UnreachableError, ConfigError, ModelError."""

        def get(path: str, headers: Mapping[str, str]) -> bytes:
            body = bytearray()

            def attempt() -> None:
                body.clear()
                began = time.monotonic()
                with self._get(name.repo, path, headers) as response:
                    for chunk in response.iter_raw():
                        body.extend(chunk)
                        if len(body) > _LISTING_BYTES or time.monotonic() - began > _LISTING_S:
                            raise ModelError(
                                name.repo, f"the hub's listing is too long: {len(body)} bytes were received"
                            )

            self._persist(name.repo, attempt, lambda: 0)
            return bytes(body)

        try:
            return self.api.listing(name, get)
        except DocumentError as error:
            hint = f"; is {self.api.endpoint_variable}={self.endpoint} a hub?" if self.endpoint != REGISTRY else ""
            raise ModelError(name.repo, f"the hub's listing {error}{hint}") from error

    def head(self, repo: str, address: str, file: HubFile, num_bytes: int) -> bytes:
        """The first bytes of a file, at most `num_bytes`; verified if that is the whole file. Raises the errors of
        `fetch`."""
        most = min(num_bytes, file.num_bytes)
        head = bytearray()

        def attempt() -> None:
            if len(head) < most:
                with self._range(repo, address, file, len(head), most) as (response, begin):
                    del head[begin:]
                    for chunk in response.iter_raw():
                        head.extend(chunk)
                        if len(head) >= most:
                            break
                if len(head) < most:
                    raise _AgainError("the answer was cut short")

        self._persist(repo, attempt, lambda: len(head))
        del head[most:]
        if most == file.num_bytes:
            digest = Digest(self._checksum(repo, file), file.num_bytes)
            digest.update(bytes(head))
            if not digest.matches():
                raise _wrong_bytes(repo, file, _WRONG_CHECKSUM)
        return bytes(head)

    def fetch(self, repo: str, address: str, file: HubFile, blob: Path, progress: Progress) -> None:
        """Write the file to `blob`, starting where an earlier attempt ended.

        Raises WrongBytesError if the bytes do not match the hub's checksum, UnreachableError if the hub does not send
        them, ConfigError for an invalid token, and OSError for disk errors."""
        incomplete = blob.with_name(f"{blob.name}.incomplete")
        checksum = self._checksum(repo, file)
        digest, done = Digest(checksum, file.num_bytes), 0
        if checksum is None:
            progress.note(f"{file.path}: the store does not have its checksum; only size and version are compared")
        with incomplete.open("ab+") as out:
            if out.tell() > file.num_bytes:
                out.truncate(0)
            out.seek(0)
            while chunk := out.read(_READ_BYTES):
                digest.update(chunk)
                done += len(chunk)
            progress.found(done)

            def attempt() -> None:
                nonlocal digest, done
                if done == file.num_bytes:
                    return
                with self._range(repo, address, file, done, file.num_bytes) as (response, begin):
                    if begin < done:
                        progress.found(-done)
                        out.truncate(0)
                        digest, done = Digest(checksum, file.num_bytes), 0
                    for chunk in response.iter_raw():
                        if done + len(chunk) > file.num_bytes:
                            raise _DifferError(f"the hub sent more than its {file.num_bytes} bytes")
                        out.write(chunk)
                        digest.update(chunk)
                        done += len(chunk)
                        progress.received(len(chunk))
                if done < file.num_bytes:
                    raise _AgainError("the answer was cut short")

            try:
                self._persist(repo, attempt, lambda: done)
                if not digest.matches():
                    raise _DifferError(_WRONG_CHECKSUM)
            except _DifferError as error:
                incomplete.unlink(missing_ok=True)
                raise _wrong_bytes(repo, file, str(error)) from error
            out.flush()
            os.fsync(out.fileno())
        incomplete.replace(blob)

    def _persist(self, repo: str, attempt: Callable[[], None], received_bytes: Callable[[], int]) -> None:
        """Retry while each attempt increases `received_bytes`. Waits grow and are limited."""
        failures, most = 0, 0
        while True:
            try:
                return attempt()
            except (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, httpx2.InvalidURL) as error:
                raise ModelError(repo, f"the hub's answer is invalid: {shown(first_line(error), 300)}") from error
            except (_AgainError, httpx2.TransportError) as error:
                failures = 1 if received_bytes() > most else failures + 1
                most = max(most, received_bytes())
                wait = (
                    error.wait_s
                    if isinstance(error, _AgainError) and error.wait_s is not None
                    else 2.0 ** (failures - 1)
                )
                if failures >= _ATTEMPTS or wait > _LONGEST_WAIT_S:
                    problem = str(error) if isinstance(error, _AgainError) else shown(first_line(error), 300)
                    raise UnreachableError(
                        repo,
                        f"cannot be downloaded from {self.endpoint} ({problem}); pull again later to resume",
                    ) from error
                self.sleep(wait)

    @contextmanager
    def _range(
        self, repo: str, address: str, file: HubFile, begin: int, end: int
    ) -> Iterator[tuple[httpx2.Response, int]]:
        """The response to a request for bytes begin to end, and its first byte: 0 if the hub does not support
        ranges."""
        headers = {**self.api.file_headers(file), "Range": f"bytes={begin}-{max(begin, end - 1)}"}
        with self._get(repo, self.api.file_path(repo, address, file), headers) as response:
            content_range = response.headers.get("Content-Range", "")
            is_range = response.status_code == 206 or content_range != ""  # some stores send ranges with the status 200
            if is_range and not content_range.startswith(f"bytes {begin}-"):
                raise ModelError(
                    repo, f"{file.path}: the hub answered the request from byte {begin} with {shown(content_range)}"
                )
            yield response, begin if is_range else 0

    def _checksum(self, repo: str, file: HubFile) -> Checksum | None:
        def head(path: str, headers: Mapping[str, str]) -> Mapping[str, str]:
            found: dict[str, str] = {}

            def attempt() -> None:
                with self._get(repo, path, headers, "HEAD") as response:
                    found.update(response.headers)

            self._persist(repo, attempt, lambda: 0)
            return found

        return self.api.checksum(repo, file, head)

    @contextmanager
    def _get(self, repo: str, path: str, headers: Mapping[str, str], method: str = "GET") -> Iterator[httpx2.Response]:
        # The client sends the token only to the URL's host, never to a redirect's.
        url = path if "://" in path else f"{self.endpoint}{path}"
        token = {} if self.token is None else self.api.token_headers(self.token)
        with self.client.stream(
            method,
            url,
            headers={**token, **headers},
            auth=self.api.auth,
            follow_redirects=self.api.follows_redirects,
        ) as response:
            self._check_status(repo, response)
            yield response

    def _check_status(self, repo: str, response: httpx2.Response) -> None:
        status, variable = response.status_code, self.api.credential_variable
        if status in (200, 206):
            return
        if (refusal := self.api.refusal(repo, response)) is not None:
            raise refusal
        if status in (401, 403, 404):
            advice = (
                f"set {variable} if it is private"
                if self.token is None
                else f"check that {variable} is valid and may read it"
            )
            refused = NotFoundError if status == 404 else TokenError
            raise refused("model", repo, f"{self.endpoint} answers {status}: check the name, and {advice}")
        if status in (408, 429) or status >= 500:
            after = response.headers.get("Retry-After", "")
            raise _AgainError(f"status {status}", float(after) if after.isdecimal() else None)
        raise ModelError(repo, f"{self.endpoint} answers with the unexpected status {status}")


def _check_endpoint(variable: str, endpoint: str) -> None:
    """Raises ConfigError for an invalid URL of a hub."""
    if not is_http_url(endpoint):
        raise ConfigError(variable, endpoint, "expected a URL without spaces that begins with https:// or http://")


SCOPE_FOLDER = "ballast"
"""The folder in ModelScope's cache for Ballast's downloads."""


def cache_of(site: str) -> Path:
    """The folder of downloaded models of a hub. ModelScope's models have a separate one, because the layout of its own
    tools stores no commits."""
    if site == HUGGING_FACE:
        return Path(constants.HF_HUB_CACHE)
    if site == OCI:
        return _own_cache() / OCI
    if site == S3:  # several stores may have a bucket with the same name
        return _own_cache() / S3 / quote(urlsplit(endpoint_of_environment()).netloc, "")
    named = os.environ.get("MODELSCOPE_CACHE")
    return (Path(named) if named else Path.home() / ".cache/modelscope") / SCOPE_FOLDER / site


def all_caches() -> Iterator[Path]:
    """The folders of all hubs and of every S3-compatible store that was used."""
    yield from (cache_of(site) for site in SITES if site != S3)
    yield from (folder for folder in (_own_cache() / S3).glob("*") if folder.is_dir())


def _own_cache() -> Path:
    named = os.environ.get("BALLAST_MODEL_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ballast/models"


_WRONG_CHECKSUM = "its checksum differs from the hub's"


def _wrong_bytes(repo: str, file: HubFile, problem: str) -> WrongBytesError:
    return WrongBytesError(repo, f"{file.path}: {problem}; its data was deleted, pull it again")


class _AgainError(Exception):
    """A response that may succeed later: after `wait_s`, if the hub reports a time."""

    def __init__(self, problem: str, wait_s: float | None = None) -> None:
        super().__init__(problem)
        self.wait_s = wait_s


class _DifferError(Exception):
    """Received bytes that cannot belong to the file."""
