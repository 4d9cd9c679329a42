"""Services on a real node: from applying a sample, to a chat through its Service, to complete removal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from devkit.cluster.binaries import ROOT
from devkit.cluster.kube import Kube, Object, documents
from devkit.cluster.nodes.installed import InstalledNode
from devkit.cluster.waiting import wait_for

SAMPLES = ROOT / "manifests" / "samples"
NAMESPACE = "default"
OWNED = ("pods", "services", "poddisruptionbudgets", "configmaps", "networkpolicies", "endpointslices")

CHAT = """
import json, sys, urllib.request
body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": int(sys.argv[2]), "n": int(sys.argv[3])}
body.update(stream=True, ignore_eos=True)
request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=300) as reply:
    for line in reply:
        if line.startswith(b"data: "):
            print(line[6:].decode().strip(), flush=True)
"""


def sample(name: str, **changes: object) -> Object:
    (service,) = documents(SAMPLES / f"{name}.yaml")
    service["spec"].update(changes)
    return service


def engine_pods(kube: Kube, name: str) -> list[Object]:
    return kube.list("pods", NAMESPACE, {"serving.ballast.dev/service": name})


def chat(installed: InstalledNode, client: str, service: str, tokens: int) -> list[Object]:
    """The chunks of a streamed chat, requested from another pod through the Service."""
    lines = installed.kubectl(
        "exec", client, "--", "python3", "-c", CHAT, address_of(installed, service), str(tokens), "1"
    )
    *chunks, end = lines.splitlines()
    assert end == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def address_of(installed: InstalledNode, service: str) -> str:
    spec = installed.kube.get("services", service, NAMESPACE)["spec"]
    return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}/v1/chat/completions"


def client_pod(installed: InstalledNode, image: str) -> str:
    """Start a pod in `default` with Python that does not belong to a service; return its name."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    installed.kube.create("pods", {"metadata": {"name": "client"}, "spec": spec}, NAMESPACE)
    installed.kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
    return "client"


@contextmanager
def served(installed: InstalledNode, service: Object, meanwhile: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Apply the service, call `meanwhile` until it is Ready; afterwards delete it and wait until no object is left."""
    name = service["metadata"]["name"]
    installed.kube.apply("inferenceservices", service, NAMESPACE)
    try:
        meanwhile()
        installed.kubectl("wait", "--for=condition=Ready", f"bisvc/{name}", "--timeout=120s")
        yield name
    finally:
        remove(installed, name)


def remove(installed: InstalledNode, name: str) -> None:
    installed.kubectl("delete", f"bisvc/{name}", "--timeout=60s")
    selector = {"serving.ballast.dev/service": name}

    def left() -> list[str]:
        return [
            f"{resource}/{item['metadata']['name']}"
            for resource in OWNED
            for item in installed.kube.list(resource, NAMESPACE, selector)
        ]

    wait_for(f"nothing left of {name}", lambda: not left(), timeout_s=120)
