"""A pytest plugin: how cases are divided among pytest-xdist's workers.

What shares a fixture runs in one worker: the cases of a file, or those of many files that share a control plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

CLUSTERS = {
    "an operator's cluster": ("tests/cluster/test_operator",),
    "a cluster of rollouts": ("tests/cluster/test_rollout", "tests/cluster/test_two_installs"),
    "a cluster": ("tests/cluster/",),
}
"""Groups that share a control plane, by how their files' names begin; the first that fits. They take equally long."""


def group_of(case: str) -> str:
    """The group of a case, given its node id."""
    fitting = (name for name, beginnings in CLUSTERS.items() if case.startswith(beginnings))
    return next(fitting, case.partition("::")[0])


@pytest.hookimpl(optionalhook=True)  # a hook of pytest-xdist, which may not be installed
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Whole groups go to workers in the order of the tree, in which those of clusters come first.

    They take longest, waiting most of the time; by number of cases, as is usual, they would begin late and be waited
    for. They are several, with a control plane each, because one of them would take longer than all other tests.

    With `--dist`, pytest-xdist divides them as it says.
    """
    if config.option.dist != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)
