"""An emulated machine with two NUMA nodes for each module. Run by tools/numa.sh."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devkit.vm.cluster import GuestCluster
from devkit.vm.disk import boot_files
from devkit.vm.guest import Guest
from devkit.vm.table import Table


@pytest.fixture(scope="module")
def guest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest whose nodes have the number of CPUs that the module sets in CPUS_PER_NODE."""
    guest = Guest(boot_files(), tmp_path_factory.mktemp("guest"), request.module.CPUS_PER_NODE)
    guest.start()
    try:
        yield guest
    finally:
        guest.stop()


@pytest.fixture(scope="session")
def table() -> Iterator[Table]:
    """Observations, printed at the end and added to the records."""
    table = Table()
    yield table
    table.show()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the state of the cluster to the report of a failure."""
    report = yield
    clusters = [found for found in getattr(item, "funcargs", {}).values() if isinstance(found, GuestCluster)]
    if report.failed and clusters:
        item.add_report_section(report.when, "cluster", clusters[0].describe())
    return report
