"""A model pulled from a hub on a real node: the claim that receives it, and the service that uses it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from devkit.cluster.kube import Object
from devkit.cluster.nodes.installed import InstalledNode
from devkit.cluster.nodes.real import ADDRESS
from devkit.cluster.nodes.served import NAMESPACE, address_of, sample
from devkit.cluster.waiting import wait_for
from devkit.stores.hub_server import BUILT_IN_NAME, HubServer, built_in_files, hub_server

CLAIM = "pulled"
PULL_LABEL = "serving.ballast.dev/pull"
PULL_TIMEOUT_S = 120
USER = 10001

ASK = """
import json, sys, urllib.request
body = {"messages": [{"role": "user", "content": sys.argv[2]}], "temperature": 0, "max_tokens": 40}
request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=60) as reply:
    print(reply.read().decode())
"""


@contextmanager
def hub_of_the_node() -> Iterator[tuple[HubServer, str]]:
    """A hub with the built-in model that pods of the node can reach, and its endpoint."""
    with hub_server(built_in_files(), host=ADDRESS, store=ADDRESS) as (hub, endpoint):
        yield hub, endpoint


@contextmanager
def empty_claim(installed: InstalledNode) -> Iterator[None]:
    """A claim for an empty folder of the node, writable by the runtime's user. Deleted afterwards, with its pulls."""
    folder = installed.folder / CLAIM
    folder.mkdir()
    os.chown(folder, USER, USER)
    access = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}, **access}
    claim = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": CLAIM, **access}
    installed.kube.create("persistentvolumes", {"metadata": {"name": CLAIM}, "spec": volume})
    installed.kube.create("persistentvolumeclaims", {"metadata": {"name": CLAIM}, "spec": claim}, NAMESPACE)
    try:
        yield
    finally:
        installed.kubectl("delete", f"pvc/{CLAIM}", f"pv/{CLAIM}", "--timeout=60s")
        shutil.rmtree(folder)


def pulled_service(name: str, endpoint: str, **source: object) -> Object:
    """The sample of the tiny model, with a model from the hub instead of the one in the image."""
    repo, _, quant = BUILT_IN_NAME.partition(":")
    hub = {"repo": repo, "quant": quant, "endpoint": endpoint, "pvc": {"claimName": CLAIM}, **source}
    service = sample("tiny-cpu", model={"source": {"huggingFace": hub}})
    service["metadata"]["name"] = name
    return service


def pulling_pods(installed: InstalledNode) -> list[Object]:
    return [pod for pod in installed.kube.list("pods", NAMESPACE) if PULL_LABEL in pod["metadata"].get("labels", {})]


def wait_pulled(installed: InstalledNode, name: str) -> Object:
    """The condition ModelPulled, once it is True."""

    def pulled() -> Object:
        status = installed.kube.get("inferenceservices", name, NAMESPACE).get("status", {})
        found: Object = next((it for it in status.get("conditions", []) if it["type"] == "ModelPulled"), {})
        assert found.get("status") == "True", found
        return found

    return wait_for("ModelPulled", pulled, PULL_TIMEOUT_S)


def chat_reply(installed: InstalledNode, client: str, service: str, question: str) -> Object:
    """The reply to a chat request from another pod, through the Service."""
    address = address_of(installed, service)
    reply: Object = json.loads(installed.kubectl("exec", client, "--", "python3", "-c", ASK, address, question))
    return reply
