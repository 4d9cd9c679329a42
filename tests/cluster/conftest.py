"""A real control plane for the whole session, and a separate namespace for each test."""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from devkit.cluster.cluster import Cluster
from devkit.cluster.faults.proxy import FaultProxy
from devkit.cluster.kube import Kube
from devkit.cluster.service.operator import OperatorProcess, install
from devkit.cluster.service.pod_answers import PodAnswers
from devkit.servers import prefork


@pytest.fixture(scope="session", autouse=True)
def forked_operators() -> Iterator[None]:
    """Start operators as forks of a process that has imported their modules."""
    template = prefork.Template(prefork.OPERATOR_MODULES)
    OperatorProcess.fork = template.start_logged
    yield
    template.end()


_CLUSTER = pytest.StashKey[Cluster]()


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = pytestconfig.stash[_CLUSTER] = Cluster(tmp_path_factory.mktemp("cluster"))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Stop the control plane after the last test here, not at session end: when idle it uses a tenth of a core."""
    yield
    has_left = nextitem is not None and not nextitem.path.is_relative_to(Path(__file__).parent)
    if has_left and _CLUSTER in item.config.stash:
        item.config.stash[_CLUSTER].stop()


@pytest.fixture
def kube(cluster: Cluster) -> Kube:
    """A client with administrator rights."""
    return cluster.kube


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Enforces the restricted pod security standard; deleted afterwards without waiting."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    name = f"{words[:40].strip('-')}-{zlib.crc32(request.node.nodeid.encode()) % 10**6}"
    cluster.make_namespace(name)
    yield name
    cluster.kube.delete("namespaces", name)


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultProxy]:
    """A running fault proxy in front of the API server."""
    proxy = cluster.proxy()
    proxy.start()
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def answers(cluster: Cluster) -> Iterator[PodAnswers]:
    """The responses of simulated pods."""
    answers = PodAnswers(cluster.kube)
    answers.start()
    yield answers
    answers.stop()


@pytest.fixture(scope="module")
def operator(cluster: Cluster, answers: PodAnswers) -> Iterator[OperatorProcess]:
    """The installed and leading operator; it must exit cleanly."""
    install(cluster)
    options = ("--resync-seconds", "5", "--allowed-host-path", "/srv")
    operator = OperatorProcess(cluster, "operator", answers.url, *options)
    operator.start()
    operator.wait_leading()
    yield operator
    operator.stop()
    assert operator.exit_code == 0, operator.log_tail()
