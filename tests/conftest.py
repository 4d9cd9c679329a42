import gc
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator

# Bytecode is kept even where the environment forbids that: without it, each of hundreds of processes would compile what
# it imports, torch among it.
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
# Until the tests run: imports leave hardly any garbage, and looking for it takes a fifth of their time.
gc.disable()
pytest_plugins = ("devkit.failures", "devkit.file_times", "devkit.long", "devkit.workers")

# Workers share the machine's cores, and OpenMP's threads spin while they wait for one that has none. Read when torch is
# imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Properties are tried on the same examples every time. A pause of the machine must not fail a test.
settings.register_profile(
    "ballast", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ballast")


@pytest.fixture(scope="session", autouse=True)
def forked_servers() -> Iterator[None]:
    """Servers and commands of this run are forks of a process that has imported what they need."""
    template = prefork.Template(prefork.SERVER_MODULES)
    ServerProcess.start = template.start
    Command.run = template.run
    yield
    template.end()


@pytest.fixture(scope="session", autouse=True)
def short_reads_of_memory() -> Iterator[None]:
    """`ballast plan` reads 64 MiB to measure the speed of memory. Its 1 GiB take two seconds of CPU time."""
    from ballast.host import bandwidth

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bandwidth, "READ_BYTES", 64 << 20)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are not run where there is no CUDA device, those marked `gpu2` not where there is no second
    one, and of these such marked `flashinfer` not where that is not installed."""
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
            item.add_marker(pytest.mark.skip(reason="no flashinfer: requirements/dev-cuda.txt has it"))


def pytest_collection_finish() -> None:
    """Excludes imported objects from garbage collection. The collector then runs more often over other objects, so a
    connection that a test leaves open is reported during that test or soon after."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """In the process that divides tests among workers, too, which collects none."""
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports the reasons why tests were not run, one per line, with their numbers."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} cases not run: {reason}")
