"""Finds the API server and our credentials for it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from yaml import YAMLError

from ballast_operator.errors import ConnectError

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


async def read_configuration() -> Configuration:
    """Read KUBECONFIG where it is set, else the pod's service account, else ~/.kube/config. Raises ConnectError."""
    configuration = Configuration()
    in_pod = "KUBECONFIG" not in os.environ and IN_CLUSTER in os.environ
    source = "the pod's service account" if in_pod else _files()
    try:
        if in_pod:
            load_incluster_config(configuration)
        else:
            _check_there(source)
            await load_kube_config(source, client_configuration=configuration)
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
    return configuration


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
