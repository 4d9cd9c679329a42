"""Authenticates at a registry: with a token, as in the distribution specification, or with a name and a password.

Credentials come from OCI_USERNAME and OCI_PASSWORD, or from Docker's config.json, as `docker login` writes it and as
Kubernetes stores it in a Secret. Credential helpers are not started."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, ConfigDict

from ballast.documents.json_document import parse_json, read_json
from ballast.documents.small_file import DocumentError
from ballast.errors import ConfigError, ModelError, shown
from ballast.hub.errors import TokenError

_CHALLENGE = re.compile(r'(\w+)\s*=\s*(?:"([^"]*)"|([^\s,]+))')
_TOKEN_BYTES = 1 << 18
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and a password, or a token that replaces both."""

    user: str
    password: str = field(repr=False)
    identity_token: str | None = field(default=None, repr=False)

    @property
    def basic(self) -> str:
        """The header's value."""
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


class RegistryLogin(httpx2.Auth):
    """Keeps the accepted credentials for the next requests."""

    def __init__(self) -> None:
        self._accepted: dict[str, str] = {}
        self.is_known = False
        """Whether there were credentials for the last registry that required some."""

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        scope = f"{request.url.netloc.decode()}/{_repository(request.url.path)}"
        if scope in self._accepted:
            request.headers["Authorization"] = self._accepted[scope]
        response = yield request
        if response.status_code != 401 or response.url.netloc != request.url.netloc:
            return  # the storage that the registry redirects to must not get the credentials
        credentials = credentials_for(scope)
        self.is_known = credentials is not None
        answer = _answer(request.url, response.headers.get("WWW-Authenticate", ""), scope, credentials)
        if answer is not None:
            self._accepted[scope] = answer
            request.headers["Authorization"] = answer
            yield request


def credentials_for(scope: str) -> Credentials | None:
    """The credentials for a registry's repository, `host/path`. Raises ConfigError for an unreadable file."""
    user, password = os.environ.get("OCI_USERNAME"), os.environ.get("OCI_PASSWORD")
    if user and password:
        return Credentials(user, password)
    file = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    if not file.is_file():
        return None
    try:
        auths = read_json(file, _DockerConfig).auths or {}
    except (DocumentError, OSError) as error:
        raise ConfigError("DOCKER_CONFIG", file, f"cannot be used: it {error}") from error
    wanted = re.sub(r"^(registry-1|index)\.docker\.io(?=/|$)", "docker.io", scope)
    fitting = {key: entry for key, entry in auths.items() if f"{wanted}/".startswith(f"{_normal(key)}/")}
    if not fitting:
        return None
    return _read_entry(file, fitting[max(fitting, key=lambda key: len(_normal(key)))])


def advice(has_credentials: bool) -> str:
    """The fix to suggest if a registry or its token service refuses a pull."""
    if has_credentials:
        return "check that the credentials allow to pull it"
    return "if it is private, log in (`docker login`), or set OCI_USERNAME and OCI_PASSWORD"


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True)
    auth: str | None = None
    username: str | None = None
    password: str | None = None
    identitytoken: str | None = None


class _DockerConfig(BaseModel):
    model_config = ConfigDict(strict=True)
    auths: dict[str, _Entry] | None = None


class _Token(BaseModel):
    model_config = ConfigDict(strict=True)
    token: str | None = None
    access_token: str | None = None


def _normal(key: str) -> str:
    """A key of `auths` as host and path; Docker Hub's is a URL of an old API."""
    bare = re.sub(r"^https?://", "", key).rstrip("/")
    bare = re.sub(r"/v[12]$", "", bare)
    return re.sub(r"^(registry-1|index)\.docker\.io(?=/|$)", "docker.io", bare)


def _read_entry(file: Path, entry: _Entry) -> Credentials | None:
    user, password = entry.username or "", entry.password or ""
    if entry.auth:
        try:
            user, _, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ConfigError("DOCKER_CONFIG", file, "has an `auth` that is not base64 of user:password") from error
    if entry.identitytoken:
        return Credentials(user, password, entry.identitytoken)
    return Credentials(user, password) if user else None


def _repository(path: str) -> str:
    return path.removeprefix("/v2/").rsplit("/", 2)[0]


def _answer(url: httpx2.URL, challenge: str, scope: str, credentials: Credentials | None) -> str | None:
    """The Authorization header for a challenge; None if no credentials fit."""
    kind, _, rest = challenge.partition(" ")
    if kind.lower() == "basic":
        return None if credentials is None else credentials.basic
    parameters = {name.lower(): quoted or bare for name, quoted, bare in _CHALLENGE.findall(rest)}
    realm = parameters.get("realm", "")
    if kind.lower() != "bearer" or not realm:
        return None
    if urlsplit(realm).scheme != "https" and url.scheme == "https":
        raise ModelError(scope, f"the registry asks for credentials to be sent without TLS, to {shown(realm, 200)}")
    repository = scope.partition("/")[2]
    service = {"service": parameters["service"]} if "service" in parameters else {}
    fields = {"scope": f"repository:{repository}:pull", **service}
    return f"Bearer {_token(realm, fields, scope, credentials)}"


def _token(realm: str, fields: dict[str, str], scope: str, credentials: Credentials | None) -> str:
    """A token for one repository. Raises TokenError if the service does not return one."""
    request: dict[str, Any]
    if credentials is not None and credentials.identity_token is not None:
        grant = {"grant_type": "refresh_token", "refresh_token": credentials.identity_token, "client_id": "ballast"}
        request = {"method": "POST", "url": realm, "data": {**fields, **grant}}
    else:
        headers = {} if credentials is None else {"Authorization": credentials.basic}
        request = {"method": "GET", "url": httpx2.URL(realm).copy_merge_params(fields), "headers": headers}
    body = bytearray()
    with httpx2.stream(**request, timeout=_TIMEOUT_S) as response:
        if response.status_code in (400, 401, 403):
            problem = f"{shown(realm, 200)} answers {response.status_code}: check the name; "
            raise TokenError("model", scope, problem + advice(credentials is not None))
        if response.status_code != 200:
            raise httpx2.RemoteProtocolError(f"{shown(realm, 200)} answers {response.status_code}")
        for chunk in response.iter_bytes():
            body.extend(chunk)
            if len(body) > _TOKEN_BYTES:
                raise ModelError(scope, f"the token of {shown(realm, 200)} is too long")
    try:
        found = parse_json(bytes(body), _Token)
    except DocumentError as error:
        raise ModelError(scope, f"the token of {shown(realm, 200)} {error}") from error
    token = found.token or found.access_token or ""
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ModelError(scope, f"{shown(realm, 200)} returns an invalid token, {shown(token, 40)}")
    return token
