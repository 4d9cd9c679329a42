"""A pytest plugin: how cases are divided among pytest-xdist's workers.

Cases that share a fixture run in one worker: the cases of a file, or of several files that share a control plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

CLUSTERS = {
    "a cluster of rollouts": tuple(
        f"tests/cluster/test_{name}" for name in ("rollout", "two_installs", "operator_at_rest", "model_cache")
    ),
    "an operator's cluster": ("tests/cluster/test_operator",),
    "a cluster": ("tests/cluster/",),
}
"""Groups that share a control plane, by file name prefix; the first match counts. They take about equally long."""

STARTS_FIRST = "tests/tools/test_wheel.py"
"""Takes half a minute and is the last file of the tree: the other workers would have nothing left to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the cases of `STARTS_FIRST`."""
    items.sort(key=lambda item: not item.nodeid.startswith(STARTS_FIRST))


def group_of(case: str) -> str:
    """The group of a case, given its node id."""
    fitting = (name for name, beginnings in CLUSTERS.items() if case.startswith(beginnings))
    return next(fitting, case.partition("::")[0])


@pytest.hookimpl(optionalhook=True)  # a hook of pytest-xdist, which may not be installed
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Assign whole groups to workers in the order of the tree, where cluster tests come first, after `STARTS_FIRST`.

    Cluster tests take longest and mostly wait. The default order (by number of cases) would start them late and the
    run would wait for them. They form several groups, each with its own control plane, because one group would take
    longer than all other tests together.

    With an explicit `--dist`, pytest-xdist's own scheduler is used.
    """
    if config.option.dist != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)
