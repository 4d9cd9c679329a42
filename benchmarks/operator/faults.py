"""Time from the end of an API server fault until the operator has applied the changes made during it. Prints one JSON
line per fault.

    python benchmarks/operator/faults.py [--hold SECONDS] [--only NAME]

During each fault, the spec is changed and a child is deleted. The time counts from the end of the fault. One operator
process handles all faults, with the resync of a default installation. `--hold 300` is an outage of five minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "cluster"))

from devkit.bench_record import bench_record
from devkit.cluster.cluster import Cluster
from devkit.cluster.faults.catalogue import FAULTS, Scene, time_to_converge
from devkit.cluster.faults.invariants import Invariants
from devkit.cluster.service.live_service import LiveService
from devkit.cluster.service.operator import OperatorProcess, install
from devkit.cluster.service.pod_answers import PodAnswers

NAMESPACE = "bench"
CONVERGE_TIMEOUT_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hold", type=float, default=20, help="length of an outage in seconds")
    parser.add_argument("--only", choices=FAULTS, action="append", help="repeatable; default: every fault")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        answers = PodAnswers(cluster.kube)
        cluster.start()
        answers.start()
        install(cluster)
        cluster.make_namespace(NAMESPACE)
        proxy = cluster.proxy()
        proxy.start()
        operator = OperatorProcess(cluster, "operator", answers.url, server=proxy.url)
        try:
            operator.start()
            operator.wait_leading()
            service = LiveService(cluster.kube, NAMESPACE, "shaken")
            service.create()
            service.wait_converged()
            scene, batch_sizes = Scene(cluster, operator, proxy, service, arguments.hold), count(5)
            for name in arguments.only or FAULTS:
                with Invariants(cluster.kube, NAMESPACE, endpoint_lag_s=arguments.hold + CONVERGE_TIMEOUT_S):
                    seconds = time_to_converge(name, scene, next(batch_sizes), CONVERGE_TIMEOUT_S)
                operator.check()
                figures = {"hold_s": arguments.hold, "seconds_to_converge": round(seconds, 1), "restarts": 0}
                print(bench_record("operator/faults", name, **figures), flush=True)
        finally:
            operator.stop()
            proxy.stop()
            answers.stop()
            cluster.stop()


if __name__ == "__main__":
    main()
