"""A model that the operator pulls from a hub to a claim on a real node, with the runtime's image and user."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from devkit.cluster.kube import Kube
from devkit.cluster.nodes.installed import InstalledNode
from devkit.cluster.nodes.pulled import (
    chat_reply,
    empty_claim,
    hub_of_the_node,
    pulled_service,
    pulling_pods,
    wait_pulled,
)
from devkit.cluster.nodes.served import NAMESPACE, engine_pods, remove, served
from devkit.cluster.waiting import wait_for
from devkit.stores.hub_server import BUILT_IN_NAME, COMMIT, HubServer


@pytest.fixture
def hub(installed: InstalledNode) -> Iterator[tuple[HubServer, str]]:
    """A hub, its endpoint, and an empty claim."""
    with hub_of_the_node() as found, empty_claim(installed):
        yield found


def test_a_hub_model_is_pulled_served_and_cached(
    installed: InstalledNode, client_pod: str, kube: Kube, hub: tuple[HubServer, str]
) -> None:
    server, endpoint = hub
    with served(installed, pulled_service("first", endpoint)) as name:
        assert COMMIT in wait_pulled(installed, name)["message"]
        reply = chat_reply(installed, client_pod, name, "What is 12 + 7?")
        assert "19" in reply["choices"][0]["message"]["content"]
        assert reply["model"] == BUILT_IN_NAME
        (engine,) = engine_pods(kube, name)
        message = installed.kubectl(
            "exec", engine["metadata"]["name"], "--", "sh", "-c", "touch /models/x 2>&1 || true"
        )
        assert "Read-only file system" in message
        reasons = {event["reason"] for event in kube.list("events", NAMESPACE)}
        assert "Pulled" in reasons
    num_bytes = server.requested_bytes
    assert num_bytes >= len(server.files["tiny-Q8_0.gguf"])
    with served(installed, pulled_service("second", endpoint)) as name:
        assert chat_reply(installed, client_pod, name, "What is 12 + 7?")["choices"]
    assert server.requested_bytes == num_bytes, "the second service uses the pulled model"


def test_a_rejected_token_is_reported_and_a_corrected_one_is_used(
    installed: InstalledNode, kube: Kube, hub: tuple[HubServer, str]
) -> None:
    server, endpoint = hub
    server.token = "right"
    secret = {"metadata": {"name": "hub-token"}, "stringData": {"token": "wrong"}}
    kube.create("secrets", secret, NAMESPACE)
    service = pulled_service("gated", endpoint, tokenSecretRef={"name": "hub-token"})
    kube.apply("inferenceservices", service, NAMESPACE)
    try:
        wait_for("the rejection", lambda: "tokenSecretRef" in refusal(kube, "gated"), timeout_s=60)
        (pod,) = pulling_pods(installed)
        assert pod["status"]["qosClass"] == "Burstable", "whole CPUs are reserved for engines"
        assert not engine_pods(kube, "gated")
        right = base64.b64encode(b"right").decode()
        kube.merge("secrets", "hub-token", {"data": {"token": right}}, NAMESPACE)
        wait_pulled(installed, "gated")
        installed.kubectl("wait", "--for=condition=Ready", "bisvc/gated", "--timeout=120s")
    finally:
        remove(installed, "gated")
        kube.delete("secrets", "hub-token", NAMESPACE)


def refusal(kube: Kube, name: str) -> str:
    """The service's message about a token that the hub rejected; empty if there is none yet."""
    status = kube.get("inferenceservices", name, NAMESPACE).get("status", {})
    refused = [found for found in status.get("conditions", []) if found["reason"] == "TokenRefused"]
    return next((found["message"] for found in refused if found["type"] == "ModelPulled"), "")
