"""Where the API server is and who we are to it."""

from __future__ import annotations

import os
from pathlib import Path

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from ballast_operator.errors import ConnectError

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


async def read_configuration() -> Configuration:
    """KUBECONFIG where it is set, else the pod's service account, else ~/.kube/config. Raises ConnectError."""
    configuration = Configuration()
    named = os.environ.get("KUBECONFIG")
    try:
        if named is None and IN_CLUSTER in os.environ:
            load_incluster_config(configuration)
        else:
            await load_kube_config(named or str(Path.home() / ".kube/config"), client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise ConnectError(
            f"no way to the API server: {error}; set KUBECONFIG, or run in a pod with a service account"
        ) from None
    return configuration
