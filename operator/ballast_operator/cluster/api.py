"""Requests to the API server. Every wait has a limit, and errors say what was asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.config import ConfigException

from ballast_operator.cluster.connect import Connection, read_configuration
from ballast_operator.cluster.kinds import Kind
from ballast_operator.errors import ConnectError
from ballast_operator.names import FIELD_MANAGER

REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
PAGE_SIZE = 500
MAX_LIST_RESTARTS = 3

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON = "application/json"

STRICT = {"fieldValidation": "Strict"}
"""Else an API server drops what it does not know: a misspelt key of spec.scheduling.affinity would have no effect."""

NAMESPACE_TERMINATING = "NamespaceTerminating"
"""core/v1's NamespaceTerminatingCause."""
NAMESPACES = "namespaces"
"""The kind that the NamespaceLifecycle admission plugin names when it finds no namespace."""


class ApiError(Exception):
    """The API server refused a request, or could not be asked (status 0)."""

    refused_by = "the API server"

    def __init__(self, what: str, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{what}: {f'HTTP {status}: ' if status else ''}{message}")
        self.status, self.message, self.retry_after_s = status, message, retry_after_s


class NamespaceEndsError(ApiError):
    """The namespace is being deleted with all that is in it, or is gone: nothing can be written there any more.

    An object outlives its namespace if the namespace's finalizers were removed by force.
    """


class Api:
    """The client of the API server. Every method raises ApiError unless it says otherwise."""

    def __init__(self, count: Callable[[str, int, float], None] = lambda verb, status, seconds: None) -> None:
        self._count = count
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._schemas: dict[str, dict[str, Any]] = {}
        """The last answer of `schemas`, by its URL, which changes with the answer."""

    async def connect(self) -> None:
        """Find out where the API server is, without asking it anything. Raises ConnectError."""
        await self._connected()

    async def close(self) -> None:
        """Close all connections, once the requests on them have ended."""
        if self._connection is not None:
            await self._connection.retire()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        """Read one object; None if it does not exist."""
        return await self._or_none("get", "GET", kind.path(namespace, name))

    async def knows(self, kind: Kind) -> bool:
        """Whether the cluster has this kind. Needs no permission on it: discovery is open to everyone."""
        found = await self._or_none("discover", "GET", f"/apis/{kind.api_version}")
        return found is not None and any(item["name"] == kind.plural for item in found["resources"])

    async def schemas(self, api_version: str) -> Mapping[str, Any]:
        """The schemas of the kinds of this API version, by kind. Needs no permission: discovery is open to everyone."""
        index = await self.request("discover", "GET", "/openapi/v3")
        url = index["paths"].get(f"apis/{api_version}", {}).get("serverRelativeURL")
        if url is None:
            return {}
        if url not in self._schemas:
            document = await self.request("discover", "GET", url)
            self._schemas = {url: dict(_by_kind(document["components"]["schemas"].values(), api_version))}
        return self._schemas[url]

    async def list_all(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> list[dict[str, Any]] | None:
        """Read all objects that match; None if the cluster does not have the kind."""
        for _ in range(MAX_LIST_RESTARTS):
            try:
                return await self._list(kind, namespace, selector)
            except ApiError as error:
                if error.status != 410:  # the list has expired between two pages
                    raise
        raise ApiError(f"list {kind.plural}", 410, f"expired {MAX_LIST_RESTARTS} times while it was read")

    async def _list(self, kind: Kind, namespace: str | None, selector: str) -> list[dict[str, Any]] | None:
        items: list[dict[str, Any]] = []
        query = {"limit": str(PAGE_SIZE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self._or_none("list", "GET", kind.path(namespace), query)
            if page is None:
                return None
            items += page["items"]
            if not (more := page["metadata"].get("continue")):
                # The items of a list lack these two fields.
                return [{"apiVersion": kind.api_version, "kind": kind.name, **item} for item in items]
            query["continue"] = more

    async def create(self, kind: Kind, body: Mapping[str, Any], namespace: str | None = None) -> dict[str, Any]:
        """Create the object. Raises ApiError with status 409 if the name is taken, 400 for a field that is none."""
        query = {"fieldManager": FIELD_MANAGER, **STRICT}
        return await self.request("create", "POST", kind.path(namespace), query, body)

    async def try_create(self, kind: Kind, body: Mapping[str, Any], namespace: str | None = None) -> None:
        """Have everything looked at that `create` would be refused for, and create nothing."""
        query = {"fieldManager": FIELD_MANAGER, "dryRun": "All", **STRICT}
        await self.request("try", "POST", kind.path(namespace), query, body)

    async def apply(
        self, kind: Kind, body: Mapping[str, Any], subresource: str | None = None, manager: str = FIELD_MANAGER
    ) -> dict[str, Any]:
        """Server-side apply: the fields of `body` become the manager's."""
        metadata = body["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"], subresource)
        query = {"fieldManager": manager, "force": "true"}
        return await self.request("apply", "PATCH", path, query, body, APPLY)

    async def merge(self, kind: Kind, namespace: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Merge `body` into the object."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self.request("patch", "PATCH", kind.path(namespace, name), query, body, MERGE)

    async def replace(self, kind: Kind, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the object. Raises ApiError with status 409 if its resourceVersion is no longer the one in `body`."""
        metadata = body["metadata"]
        query = {"fieldManager": FIELD_MANAGER}
        return await self.request("update", "PUT", kind.path(metadata["namespace"], metadata["name"]), query, body)

    async def delete(
        self, kind: Kind, body: Mapping[str, Any], propagation: str | None = None, *, unchanged: bool = False
    ) -> None:
        """Delete this very object, not another that took its name. Nothing happens if it is gone.

        `unchanged`: raises ApiError with status 409 if it has changed since `body` was read.
        `propagation`: what becomes of objects that it owns; None: what is usual for its kind, which orphans a Job's."""
        metadata = body["metadata"]
        conditions = {key: metadata[key] for key in ("uid", *(("resourceVersion",) if unchanged else ()))}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": conditions}
        if propagation is not None:
            options["propagationPolicy"] = propagation
        try:
            await self._or_none("delete", "DELETE", kind.path(metadata["namespace"], metadata["name"]), {}, options)
        except ApiError as error:
            if unchanged or error.status != 409:  # without `unchanged`, another uid has the name: ours is gone
                raise

    async def _or_none(
        self, verb: str, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None
    ) -> dict[str, Any] | None:
        try:
            return await self.request(verb, method, path, query, body)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def request(
        self,
        verb: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        """Send one request, counted under `verb`. After a 401 it is sent once more, with credentials read again."""
        began = time.monotonic()
        connection, status, retry_after, payload = await self._send(method, path, query, body, content_type)
        if status == 401:
            await self._drop(connection)
            _, status, retry_after, payload = await self._send(method, path, query, body, content_type)
        self._count(verb, status, time.monotonic() - began)
        what = f"{verb} {path}"
        if not 200 <= status < 300:
            failure = NamespaceEndsError if _namespace_ends(status, payload) else ApiError
            raise failure(what, status, _message(payload), _seconds(retry_after))
        try:
            answer = json.loads(payload)
        except ValueError:
            raise ApiError(what, 0, "the answer is not JSON") from None
        if not isinstance(answer, dict):
            raise ApiError(what, 0, "the answer is not an object")
        return answer

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content_type: str
    ) -> tuple[Connection, int, str | None, bytes]:
        began = time.monotonic()
        try:
            connection = await self._connected()
            async with connection.used() as client:
                request = await client.param_serialize(
                    method,
                    path,
                    query_params=list((query or {}).items()),
                    header_params={"Accept": JSON, "Content-Type": content_type},
                    body=body,
                    auth_settings=["BearerToken"],
                )
                timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
                reply = await client.call_api(*request, _request_timeout=timeout)
                return connection, reply.status, reply.headers.get("Retry-After"), await reply.read()
        except (aiohttp.ClientError, TimeoutError, OSError, ConfigException, ConnectError) as error:
            self._count(method.lower(), 0, time.monotonic() - began)
            raise ApiError(f"{method} {path}", 0, f"{type(error).__name__}: {error}") from None

    async def _connected(self) -> Connection:
        async with asyncio.timeout(REQUEST_TIMEOUT_S), self._connecting:  # reading may run a credentials plugin
            if self._connection is None:
                self._connection = Connection(ApiClient(await read_configuration()))
            return self._connection

    async def _drop(self, refused: Connection) -> None:
        """Have the next request read the credentials again, unless another request already did."""
        if self._connection is refused:
            self._connection = None
            await refused.retire()


def _by_kind(schemas: Iterable[Mapping[str, Any]], api_version: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for schema in schemas:
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            if f"{kind['group']}/{kind['version']}" == api_version:
                yield kind["kind"], schema


def _message(payload: bytes) -> str:
    try:
        return str(json.loads(payload)["message"])
    except (ValueError, KeyError, TypeError):
        return payload[:500].decode(errors="replace")


def _namespace_ends(status: int, payload: bytes) -> bool:
    """Whether a refusal is the NamespaceLifecycle admission plugin's."""
    try:
        details = json.loads(payload)["details"]
        if status == 404:
            return bool(details["kind"] == NAMESPACES)
        return status == 403 and any(cause["reason"] == NAMESPACE_TERMINATING for cause in details["causes"])
    except (ValueError, KeyError, TypeError):
        return False


def _seconds(retry_after: str | None) -> float | None:
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
