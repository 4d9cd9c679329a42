"""One real node for the session, with the operator installed like users do. Run by tools/e2e.sh."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devkit.cluster.kube import Kube
from devkit.cluster.nodes.images import ARCHIVES, RUNTIME_IMAGE
from devkit.cluster.nodes.installed import InstalledNode
from devkit.cluster.nodes.served import client_pod


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledNode]:
    installed = InstalledNode(tmp_path_factory.mktemp("node"), sorted(ARCHIVES.glob("*.tar")))
    try:
        installed.start()
        yield installed
    finally:
        installed.stop()


@pytest.fixture
def kube(installed: InstalledNode) -> Kube:
    return installed.kube


@pytest.fixture(scope="session", name="client_pod")
def started_client_pod(installed: InstalledNode) -> str:
    """Name of a pod in `default` with Python that does not belong to a service."""
    return client_pod(installed, RUNTIME_IMAGE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the state of the cluster to the report of a failure."""
    report = yield
    if report.failed and "installed" in getattr(item, "funcargs", {}):
        item.add_report_section(report.when, "cluster", item.funcargs["installed"].describe())
    return report


def pytest_configure(config: pytest.Config) -> None:
    if not list(ARCHIVES.glob("*.tar")):
        raise pytest.UsageError(f"no images in {ARCHIVES}; run these tests with: make e2e")
