"""Finds the API server and our credentials for it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, list_kube_config_contexts, load_incluster_config, load_kube_config
from yaml import YAMLError

from ballast_operator.errors import ConnectError

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
DEFAULT_NAMESPACE = "default"


async def read_configuration() -> Configuration:
    """Read KUBECONFIG where it is set, else the pod's service account, else ~/.kube/config. Raises ConnectError."""
    configuration = Configuration()
    source = "the pod's service account" if _in_pod() else _files()
    with _explained(source):
        if _in_pod():
            load_incluster_config(configuration)
        else:
            _check_there(source)
            await load_kube_config(source, client_configuration=configuration)
    return configuration


def context_namespace() -> str:
    """The namespace of the kubeconfig's current context, which kubectl uses too; `default` without one. Raises
    ConnectError."""
    if _in_pod():
        return DEFAULT_NAMESPACE
    source = _files()
    with _explained(source):
        _check_there(source)
        _, current = list_kube_config_contexts(source)
        return str(current["context"].get("namespace") or DEFAULT_NAMESPACE)


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """Raises ConnectError for everything that the client raises for a kubeconfig or a service account."""
    try:
        yield
    except (ConfigException, OSError) as error:
        raise ConnectError(
            f"no way to the API server by {source}: {error}; set KUBECONFIG, or run in a pod with a service account"
        ) from None
    except (
        YAMLError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:  # the client raises these for bad content
        raise ConnectError(f"{source} is not a kubeconfig that can be read ({error!r}); set KUBECONFIG") from None


def _in_pod() -> bool:
    return "KUBECONFIG" not in os.environ and IN_CLUSTER in os.environ


def _files() -> str:
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube/config")


def _check_there(paths: str) -> None:
    """Raises OSError unless one of the paths, separated by colons, exists."""
    if not any(Path(path).exists() for path in paths.split(os.pathsep)):
        raise FileNotFoundError("there is no such file")


class Connection:
    """A pool of connections under one set of credentials. It closes once it is retired and no request uses it."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._num_requests = 0
        self._retired = False

    @asynccontextmanager
    async def used(self) -> AsyncIterator[ApiClient]:
        """The client, for one request and the reading of its answer."""
        self._num_requests += 1
        try:
            yield self._client
        finally:
            self._num_requests -= 1
            await self._close_if_done()

    async def retire(self) -> None:
        """Close the pool once the running requests have ended. New requests take another connection."""
        self._retired = True
        await self._close_if_done()

    async def _close_if_done(self) -> None:
        if self._retired and self._num_requests == 0:
            await self._client.close()
