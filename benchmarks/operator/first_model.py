"""Time from an empty cluster to a served model from a hub, with the operator on a real node. Prints one JSON line.

tools/node-namespaces.sh .venv/bin/python benchmarks/operator/first_model.py [--rounds 3]

    kubectl apply -f CRD -f OPERATOR         once, until a pod of the operator leads
    kubectl apply -f SERVICE                 until ModelPulled is True, and until Ready is
    a chat request from another pod          through the Service

Needs the images of `make e2e`, which are already on the node. The claim is empty in each round. The hub runs on this
machine, and the model is the built-in one under another name.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from devkit.bench_record import bench_record
from devkit.cluster.nodes.images import ARCHIVES, RUNTIME_IMAGE
from devkit.cluster.nodes.installed import InstalledNode
from devkit.cluster.nodes.pulled import chat_reply, empty_claim, hub_of_the_node, pulled_service, wait_pulled
from devkit.cluster.nodes.served import client_pod, served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with TemporaryDirectory() as directory:
        installed = InstalledNode(Path(directory), sorted(ARCHIVES.glob("*.tar")))
        try:
            installed.start_node()
            begin = time.perf_counter()
            installed.install()
            install_s = round(time.perf_counter() - begin, 1)
            client_pod(installed, RUNTIME_IMAGE)
            with hub_of_the_node() as (hub, endpoint):
                rounds = [one_round(installed, f"round-{number}", endpoint) for number in range(options.rounds)]
                num_bytes = sum(map(len, hub.files.values()))
        finally:
            installed.stop()
    figures: dict[str, object] = {name: [found[name] for found in rounds] for name in rounds[0]}
    figures["median_total_s"] = round(install_s + median(sum(found.values()) for found in rounds), 1)
    figures["load_average"] = round(os.getloadavg()[0], 1)
    case = "built-in model from a hub"
    print(bench_record("operator/first_model", case, pulled_bytes=num_bytes, install_s=install_s, **figures))


def one_round(installed: InstalledNode, name: str, endpoint: str) -> dict[str, float]:
    """Seconds of each phase."""
    with empty_claim(installed):
        begin = time.perf_counter()
        pulled_s = 0.0

        def seen_pulled() -> None:
            nonlocal pulled_s
            wait_pulled(installed, name)
            pulled_s = time.perf_counter() - begin

        with served(installed, pulled_service(name, endpoint), seen_pulled):
            ready_s = time.perf_counter() - begin
            reply = chat_reply(installed, "client", name, "What is 12 + 7?")
            reply_s = time.perf_counter() - begin - ready_s
            content = reply["choices"][0]["message"]["content"]
            assert "19" in content, content
    parts = {"pull_s": pulled_s, "ready_s": ready_s - pulled_s, "first_reply_s": reply_s}
    return {part: round(seconds, 1) for part, seconds in parts.items()}


if __name__ == "__main__":
    main()
