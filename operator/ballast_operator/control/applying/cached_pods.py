"""Replaces waiting pods after the nodes with their cached model have changed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ballast_operator.api.inference_service import InferenceService
from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import POD
from ballast_operator.control.applying.outcome import Outcome
from ballast_operator.control.deciding.live_pod import Pod
from ballast_operator.resources.node_affinity import admitted_nodes, on_nodes

log = logging.getLogger(__name__)


async def replace_waiting(api: Api, service: InferenceService, pods: Sequence[Pod], outcome: Outcome) -> None:
    """Delete pods without a node that admit other nodes than those that have the model; the next pass makes new ones.

    The affinity of a pod cannot be changed. A pod that has a node keeps it.
    """
    if service.cached is None or service.cached.nodes is None:
        return
    wanted = admitted_nodes(on_nodes(service.spec.scheduling.affinity, service.cached.nodes))
    for pod in pods:
        waits = pod.node is None and not pod.terminating and not pod.over
        if not waits or admitted_nodes((pod.body.get("spec") or {}).get("affinity")) == wanted:
            continue
        try:
            await api.delete(POD, pod.body)
            log.info("pod replaced for other nodes", extra={"pod": pod.name, "service": str(service.ref)})
        except ApiError as error:
            outcome.failed(f"to delete Pod {pod.name}", error, optional=True)
