import gc
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator

# Write bytecode even if the environment forbids it. Otherwise each of hundreds of processes would compile its imports,
# including torch.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""

# Triton's interpreter multiplies tiles with numpy. On a GPU, the product of a row does not depend on the row's position
# in its tile. The same holds for these OpenBLAS kernels, but not for all. numpy reads the variable when it is imported.
os.environ["OPENBLAS_CORETYPE"] = "Sandybridge"

import pytest
from hypothesis import HealthCheck, settings

from ballast.host.gpu import why_unusable
from devkit.servers import prefork
from devkit.servers.command import Command
from devkit.servers.process import ServerProcess

sys.dont_write_bytecode = False
# Disable the collector until the tests run: imports leave hardly any garbage, and it takes a fifth of their time.
gc.disable()
pytest_plugins = ("devkit.failures", "devkit.file_times", "devkit.long", "devkit.workers")

# Workers share the cores, and waiting OpenMP threads spin even when a thread that they wait for has no core. torch
# reads the variable when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hypothesis uses the same examples in every run. A pause of the machine must not fail a test.
settings.register_profile(
    "ballast", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ballast")


@pytest.fixture(scope="session", autouse=True)
def forked_servers() -> Iterator[None]:
    """Start servers and commands as forks of a process that has imported their modules."""
    template = prefork.Template(prefork.SERVER_MODULES)
    ServerProcess.start = template.start
    Command.run = template.run
    yield
    template.end()


@pytest.fixture(scope="session", autouse=True)
def short_reads_of_memory() -> Iterator[None]:
    """`ballast plan` reads 64 MiB to measure memory speed. The default of 1 GiB takes two seconds of CPU time."""
    from ballast.host import bandwidth

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bandwidth, "READ_BYTES", 64 << 20)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` if there is no CUDA device, those marked `gpu2` if there is no second one, and those also
    marked `flashinfer` if flashinfer is not installed."""
    has_flashinfer = importlib.util.find_spec("flashinfer") is not None
    reasons: dict[str, str | None] = {}
    for item in items:
        mark = next((mark for mark in ("gpu2", "gpu") if item.get_closest_marker(mark)), None)
        if mark is None:
            continue
        if mark not in reasons:
            reasons[mark] = why_unusable("cuda:0") or (why_unusable("cuda:1") if mark == "gpu2" else None)
        if reasons[mark] is not None:
            what = "no GPU" if mark == "gpu" else "no two GPUs"
            item.add_marker(pytest.mark.skip(reason=f"{what}: {reasons[mark]}"))
        elif item.get_closest_marker("flashinfer") and not has_flashinfer:
            item.add_marker(pytest.mark.skip(reason="flashinfer is not installed: install requirements/dev-cuda.txt"))


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection. The collector then scans other objects more often, so a
    connection that a test leaves open is reported during that test or soon after."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """The same in the process that distributes tests to workers, which collects no tests."""
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the reasons why tests were skipped, one per line, with their counts."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} cases not run: {reason}")
