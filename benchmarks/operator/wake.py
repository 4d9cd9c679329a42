"""Time from a request to the first token of a service at zero replicas that KEDA's HTTP add-on wakes. Prints one JSON
line.

    python benchmarks/operator/wake.py MODEL.gguf [--disk DIR | --memory DIR] [--rounds N]

The control plane, KEDA, the add-on, the operator and the engine are real and share this machine's CPUs. Nodes are
simulated, so no image is pulled and no container is made. The model's file is in the page cache. `--disk` and
`--memory` name a folder for packed weights, on a disk or in a tmpfs. Without one of them, each start packs the weights.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from ballast_operator.folders import MODEL_DIRECTORY, PACKED_DIRECTORY
from devkit.bench_record import bench_record
from devkit.cluster.cluster import Cluster
from devkit.cluster.kube import Object, documents
from devkit.cluster.nodes.engines import Engines
from devkit.cluster.nodes.made_up import BEHAVIOUR
from devkit.cluster.service import keda
from devkit.cluster.service.claims import bound_claim
from devkit.cluster.service.keda import INTERCEPTOR_ADDRESS, Keda
from devkit.cluster.service.operator import OperatorProcess, install
from devkit.cluster.service.specs import wait_condition
from devkit.cluster.waiting import wait_for

SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "scale-to-zero.yaml"
NAMESPACE = "bench"
CLAIM = "packed"
NAME, HOST = "asleep", "asleep.models.example"
"""The sample's service, and the host name of its route."""
COOLDOWN_S = 2
LIMIT_S = 120
PROMPT = {"prompt": [3, 4, 5], "max_tokens": 4, "ignore_eos": True, "stream": True}
"""Token ids, because models of a real shape with random weights have no tokenizer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    packed = parser.add_mutually_exclusive_group()
    packed.add_argument("--disk", type=Path)
    packed.add_argument("--memory", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="number of starts after the first one")
    options = parser.parse_args()
    kept_in = "disk" if options.disk else "tmpfs" if options.memory else "nothing"
    read_once(options.model)
    with service(options.model, options.disk or options.memory) as asleep:
        starts = [asleep.wake_s() for _ in range(options.rounds + 1)]
    first, *later = (start for start, _ in starts)
    figures = {"first_s": first, "later_s": later, "median_later_s": round(statistics.median(later), 2)}
    awake_s = round(statistics.median(awake for _, awake in starts), 2)
    file_gb, load = round(options.model.stat().st_size / 1e9, 3), round(os.getloadavg()[0], 1)
    case = f"{options.model.name}: request to first token"
    rest = {"awake_s": awake_s, "file_gb": file_gb, "load_average": load}
    print(bench_record("operator/wake", case, kept_in=kept_in, **figures, **rest))


def read_once(file: Path) -> None:
    """Reads the file into the page cache."""
    with file.open("rb") as stream:
        while stream.read(2**24):
            pass


@dataclass(frozen=True)
class Asleep:
    """The service, at zero replicas."""

    cluster: Cluster
    engines: Engines
    url: str
    """URL of the interceptor's proxy."""
    is_packed: bool
    """Whether packed weights are kept."""

    def wake_s(self) -> tuple[float, float]:
        """Seconds to the first token of a request that wakes the service, and of the next one. On return, the service
        is at zero replicas again."""
        seconds = round(self._first_token_s(), 2), round(self._first_token_s(), 2)
        # the copy is written to disk while the engine serves, and is lost if the engine exits earlier
        if self.is_packed:
            wait_for("packed weights", lambda: self._first_token_s() and self._has_packed_weights())
        self.wait()
        return seconds

    def wait(self) -> None:
        """Returns when no pod and no engine is left."""
        wait_condition(self.cluster.kube, NAMESPACE, NAME, "Ready", "False", "ScaledToZero")
        wait_for("the engine to end", lambda: not self.engines.num_running)

    def _has_packed_weights(self) -> bool:
        engine = self.engines.started[-1]
        return any(engine.has_logged(f"packed weights {use}") for use in ("kept", "mapped", "read"))

    def _first_token_s(self) -> float:
        began = time.perf_counter()
        address, headers = f"{self.url}/v1/completions", {"Host": HOST}
        with httpx.stream("POST", address, json=PROMPT, headers=headers, timeout=LIMIT_S, trust_env=False) as reply:
            reply.raise_for_status()
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    return time.perf_counter() - began
        sys.exit("the reply has no token")


@contextmanager
def service(model: Path, packed: Path | None) -> Iterator[Asleep]:
    """The sample with this model, at zero replicas, in a separate cluster."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        cluster = Cluster(Path(folder))
        cluster.start()
        stack.callback(cluster.stop)
        folders = {MODEL_DIRECTORY: model.parent, **({PACKED_DIRECTORY: packed} if packed is not None else {})}
        engines = Engines(cluster.kube, folders, hosts=(INTERCEPTOR_ADDRESS,))
        engines.start()
        stack.callback(engines.stop)
        install(cluster)
        operator = OperatorProcess(cluster, "operator", engines.url, "--allowed-host-path", "/srv")
        operator.start()
        stack.callback(operator.stop)
        stack.enter_context(cluster.kinds(*keda.definitions()))
        scaling = Keda(cluster, engines.socks_url)
        scaling.start()
        stack.callback(scaling.stop)
        cluster.make_namespace(NAMESPACE, restricted=False)  # hostPath
        stack.callback(cluster.kube.delete, "namespaces", NAMESPACE)
        if packed is not None:
            stack.enter_context(bound_claim(cluster.kube, NAMESPACE, CLAIM, "ReadWriteOnce"))
        for body in bodies(model, scaling, packed is not None):
            cluster.kube.create(cluster.resource_of(body), body, NAMESPACE)
        asleep = Asleep(cluster, engines, scaling.url, packed is not None)
        asleep.wait()
        wait_for("KEDA to watch the route", lambda: scaling.watches(NAMESPACE, NAME))
        yield asleep


def bodies(model: Path, scaling: Keda, is_packed: bool) -> list[Object]:
    one, route, scaled = documents(SAMPLE)
    source = {"source": {"hostPath": {"path": "/srv"}}, "ggufPath": model.name, "servedName": "m"}
    packed = {"packedWeights": {"pvc": {"claimName": CLAIM}}} if is_packed else {}
    resources = {"cpus": 2, "memory": "16Gi", "gpus": 0}
    on_node = {"numa": {"enforcement": "Off"}, "scheduling": {"nodeSelector": {BEHAVIOUR: "loading"}}}
    one["spec"].update(model=source, resources=resources, replicas=0, **on_node, **packed)
    scaled["spec"].update(cooldownPeriod=COOLDOWN_S, pollingInterval=1)
    scaled["spec"]["triggers"][0]["metadata"]["scalerAddress"] = scaling.scaler_address
    return [one, route, scaled]


if __name__ == "__main__":
    main()
