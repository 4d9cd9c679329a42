"""One machine in software with two NUMA nodes for the session. Started by tools/numa.sh."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.vm.disk import boot_files
from support.vm.guest import Guest
from support.vm.table import Table


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    guest = Guest(boot_files(), tmp_path_factory.mktemp("guest"), cpus_per_node=2)
    guest.start()
    try:
        yield guest
    finally:
        guest.stop()


@pytest.fixture(scope="session")
def table() -> Iterator[Table]:
    """What was seen, printed at the end and added to the records."""
    table = Table()
    yield table
    table.show()
