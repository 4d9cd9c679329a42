"""A guarded process runs tasks, is stopped by its limits, and never outlives its parent."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ballast.awake_clock import AwakeClock
from ballast.guarded import GuardedProcess, LimitExceededError, Limits, TaskFailedError, process
from ballast.guarded.frames import receive, send

LIMITS = Limits(cpu_s=0.3, memory_bytes=256 << 20)


@pytest.fixture(scope="module")
def shared() -> Iterator[GuardedProcess]:
    with GuardedProcess("devkit.guarded_tasks", LIMITS) as guarded:
        yield guarded


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "value",
    [None, True, 2**70, -0.5, float("inf"), "", "ä\x00\n中👍", "\ud800", [], {"a": [{"b": None}]}, "x" * 3_000_000],
    ids=lambda value: repr(value)[:20],
)
def test_plain_data_arrives_as_it_was_sent(shared: GuardedProcess, value: Any) -> None:
    assert shared.ask(["echo", value]) == value


def test_one_process_answers_all_tasks(shared: GuardedProcess) -> None:
    assert shared.ask(["pid"]) == shared.ask(["pid"]) != os.getpid()


def test_an_exception_of_a_task_is_reported(shared: GuardedProcess) -> None:
    pid = shared.ask(["pid"])
    with pytest.raises(TaskFailedError, match=r"^no such thing$"):
        shared.ask(["fail", "no such thing"])
    with pytest.raises(TaskFailedError, match=r"^capacity overflow$"):
        shared.ask(["panic"])
    with pytest.raises(TaskFailedError, match=r"^x{1000}…$"):
        shared.ask(["fail", "x" * 10_000_000])
    assert shared.ask(["pid"]) == pid


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (["spin"], r"it ran for more than 0\.3 s"),
        (["hold the lock"], r"it ran for more than 0\.3 s"),
        (["fill", 1 << 30], "it takes more than 256 MiB of memory"),
        (["abort"], r"its process ended by SIGABRT, within limits of 0\.3 s and 256 MiB"),
        (["kill"], "its process ended by SIGKILL"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_task_that_passes_its_limits_ends_and_the_next_is_answered(
    shared: GuardedProcess, task: list[Any], reason: str
) -> None:
    pid = shared.ask(["pid"])
    with pytest.raises(LimitExceededError, match=f"^{reason}"):
        shared.ask(task)
    assert not is_running(pid)
    assert shared.ask(["echo", 5]) == 5


def test_a_task_that_only_waits_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with GuardedProcess("devkit.guarded_tasks", LIMITS) as guarded:
        assert guarded.ask(["echo", 5]) == 5
        monkeypatch.setattr(process, "_TIMEOUT_S", 0.1)
        with pytest.raises(LimitExceededError, match=r"^it gave no answer within 0\.1 s$"):
            guarded.ask(["sleep", 60])


def test_the_time_of_one_task_is_not_counted_for_the_next(shared: GuardedProcess) -> None:
    for _ in range(4):
        assert shared.ask(["compute", 0.1]) == "done"


def test_a_process_that_ended_between_tasks_is_restarted(shared: GuardedProcess) -> None:
    pid = shared.ask(["pid"])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    assert shared.ask(["pid"]) != pid


def test_a_process_that_a_thread_started_may_end_with_it(shared: GuardedProcess) -> None:
    shared.close()
    with ThreadPoolExecutor(1) as thread:
        pid = thread.submit(shared.ask, ["pid"]).result()
    wait_until(lambda: not is_running(pid))
    assert shared.ask(["echo", 5]) == 5


def test_threads_wait_for_each_other(shared: GuardedProcess) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda n: shared.ask(["echo", n]), range(100))) == list(range(100))


def test_the_environment_stays_outside(shared: GuardedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALLAST_SECRET", "5")
    shared.close()
    assert "BALLAST_SECRET" not in shared.ask(["environment"])


def test_a_process_that_cannot_be_started_is_a_system_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        GuardedProcess("devkit.guarded_tasks", LIMITS).ask(["pid"])


def test_a_process_forked_during_a_call_of_another_thread_can_call(shared: GuardedProcess) -> None:
    with shared._lock:  # as if another thread held it, which does not exist in the forked process
        forked = os.fork()
        if forked == 0:
            os._exit(0 if shared.ask(["echo", "here"]) == "here" else 1)
        _, status = os.waitpid(forked, 0)
    assert status == 0
    assert shared.ask(["echo", "still here"]) == "still here"


def test_a_forked_process_does_not_talk_to_its_parents(shared: GuardedProcess) -> None:
    pid = shared.ask(["pid"])
    forked = os.fork()
    if forked == 0:
        os._exit(shared.ask(["pid"]) == pid)
    _, status = os.waitpid(forked, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert shared.ask(["pid"]) == pid


def test_it_ends_with_its_object() -> None:
    guarded = GuardedProcess("devkit.guarded_tasks", LIMITS)
    pid = guarded.ask(["pid"])
    del guarded
    gc.collect()
    assert not is_running(pid)


ASK_AND_END = """
import os, sys, threading
from contextlib import suppress
from ballast.guarded import GuardedProcess, Limits
guarded = GuardedProcess("devkit.guarded_tasks", Limits(cpu_s=100.0, memory_bytes=256 << 20))
print(guarded.ask(["pid"]), flush=True)
def ask():
    with suppress(Exception):  # it may learn that its process has ended before it ends itself
        guarded.ask(["spin"])
threading.Thread(target=ask, daemon=True).start()
{end}
"""


@pytest.mark.parametrize(
    "end",
    ["import time; time.sleep(0.1)", "import time; time.sleep(0.1); os._exit(0)", "os.kill(os.getpid(), 9)"],
    ids=["end", "exit", "kill"],
)
def test_the_guarded_process_ends_with_its_parent_even_if_busy(end: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", ASK_AND_END.format(end=end)]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert done.stderr == b""
    wait_until(lambda: not is_running(int(done.stdout)))


ASK_ISOLATED = """
from ballast.guarded.process import GuardedProcess, Limits
with GuardedProcess("guarded_probe", Limits(cpu_s=5, memory_bytes=1 << 30)) as guarded:
    print(guarded.ask(None))
"""


def test_the_process_of_an_isolated_program_is_isolated_too(tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False)
    (site,) = tmp_path.glob("lib/python3*/site-packages")
    (site / "ballast.pth").write_text("\n".join(path for path in sys.path if path))
    (site / "guarded_probe.py").write_text("import sys\ndef answer(task): return bool(sys.flags.isolated)\n")
    done = subprocess.run(
        [tmp_path / "bin/python", "-I", "-c", ASK_ISOLATED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_an_answer_delayed_by_a_pause_of_the_machine_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    system_s = iter(range(0, 10**6, 3600))  # an hour passes between two clock reads
    monkeypatch.setattr(AwakeClock, "for_limit", lambda limit_s: AwakeClock(limit_s / 8, lambda: float(next(system_s))))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answers = threading.Timer(0.05, send, [theirs, b"at last"])
        answers.start()
        assert receive(ours, 100, timeout_s=0.2) == b"at last"
        answers.join()
        with pytest.raises(TimeoutError):
            receive(ours, 100, timeout_s=0.2)
