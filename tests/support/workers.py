"""A pytest plugin: how cases are divided among pytest-xdist's workers.

What shares a fixture runs in one worker: the cases of a file, or those of the folders that share a control plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

CLUSTER = ("tests/cluster", "tests/monitoring", "tests/chart")
"""Folders whose tests share what takes long to start."""


def group_of(case: str) -> str:
    """The group of a case, given its node id."""
    return "cluster" if case.startswith(CLUSTER) else case.partition("::")[0]


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist is not installed, nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Whole groups go to workers in the order of the tree, in which the cluster's comes early.

    That one takes longest, waiting most of the time; by number of cases, as is usual, it would begin late and be waited
    for.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)
