"""The next start of the same model finds the uses of experts that a server has counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ballast.model.metadata import read_spec
from ballast.moe import heat_keeper
from ballast.moe.heat_keeper import HeatKeeper
from ballast.moe.kept_uses import keep_heat, read_kept_uses
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models.written import write_tiny_model

LIMIT_S = 30.0
HEAT = np.array([[3.4, 0.0, 100.0], [0.0, 0.0, 0.0]])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path / "volume"))
    return tmp_path / "volume"


def model(tmp_path: Path, seed: int) -> GgufModel:
    (tmp_path / str(seed)).mkdir()
    return open_gguf(write_tiny_model(tmp_path / str(seed), arch="v3", quant="q8_0", seed=seed).gguf)


def test_uses_are_kept_by_model(tmp_path: Path, folder: Path) -> None:
    gguf, other = model(tmp_path, 0), model(tmp_path, 1)
    name = read_spec(gguf, None).name
    assert read_kept_uses(gguf, name, 2, 3) is None
    keep_heat(gguf, name, 2, HEAT)
    kept = read_kept_uses(gguf, name, 2, 3)
    assert kept is not None
    assert kept.tolist() == [[3, 0, 100], [0, 0, 0]]
    assert read_kept_uses(other, name, 2, 3) is None
    keep_heat(gguf, name, 2, 0 * HEAT)
    assert read_kept_uses(gguf, name, 2, 3) is not None, "nothing is known about use: the last knowledge stays"
    keep_heat(gguf, name, 2, 2 * HEAT)
    assert [path.suffix for path in (folder / "expert_uses").iterdir()] == [".json"]


def test_a_damaged_file_is_ignored_with_a_warning(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gguf = model(tmp_path, 0)
    keep_heat(gguf, "m", 2, HEAT)
    [file] = (folder / "expert_uses").iterdir()
    file.write_text("{")
    assert read_kept_uses(gguf, "m", 2, 3) is None
    assert [record.getMessage() for record in caplog.records] == ["kept uses of experts are ignored"]
    assert read_kept_uses(gguf, "m", 9, 3) is None


def test_a_folder_that_cannot_be_written_is_reported(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    (folder / "expert_uses").write_text("a file")
    keep_heat(model(tmp_path, 0), "m", 2, HEAT)
    assert [record.getMessage() for record in caplog.records] == ["uses of experts are not kept"]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "too late"
        time.sleep(0.01)


def test_a_running_server_keeps_uses_now_and_then(tmp_path: Path, folder: Path) -> None:
    gguf, current = model(tmp_path, 0), [HEAT]
    callers: set[str] = set()

    def heat() -> np.ndarray:
        callers.add(threading.current_thread().name)
        return current[0].copy()

    def is_kept(expected: np.ndarray) -> bool:
        kept = read_kept_uses(gguf, "m", 2, 3)
        return kept is not None and kept.tolist() == np.rint(expected).tolist()

    keeper = HeatKeeper(gguf, "m", 2, heat, period_s=0.01)
    wait_until(lambda: is_kept(HEAT))
    current[0] = 2 * HEAT
    wait_until(lambda: is_kept(2 * HEAT))
    [file] = (folder / "expert_uses").glob("*.json")
    written = file.stat().st_mtime_ns
    callers.clear()
    wait_until(lambda: len(callers) > 0)
    assert callers == {"ballast-keep-uses"}, "no step waits for a disk"
    assert file.stat().st_mtime_ns == written, "an idle server writes nothing"
    current[0] = 3 * HEAT
    keeper.close()
    assert is_kept(3 * HEAT)
    assert not keeper._thread.is_alive()


def test_the_end_keeps_uses_also_before_the_first_period(tmp_path: Path, folder: Path) -> None:
    gguf = model(tmp_path, 0)
    HeatKeeper(gguf, "m", 2, lambda: HEAT).close()
    assert read_kept_uses(gguf, "m", 2, 3) is not None
    HeatKeeper(gguf, "m", 2, lambda: None).close()
    assert read_kept_uses(gguf, "m", 2, 3) is not None, "nothing is known about use: the last knowledge stays"


def test_uses_that_could_not_be_written_are_written_at_the_end(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf, outcomes = model(tmp_path, 0), [False]
    monkeypatch.setattr(heat_keeper, "keep_heat", lambda *given: outcomes.pop() if outcomes else keep_heat(*given))
    keeper = HeatKeeper(gguf, "m", 2, lambda: HEAT, period_s=0.01)
    wait_until(lambda: not keeper._thread.is_alive())
    assert read_kept_uses(gguf, "m", 2, 3) is None
    keeper.close()
    assert read_kept_uses(gguf, "m", 2, 3) is not None


def test_a_model_that_is_gone_is_not_waited_for(tmp_path: Path, folder: Path) -> None:
    keeper = HeatKeeper(model(tmp_path, 0), "m", 2, lambda: None, period_s=0.01)
    wait_until(lambda: not keeper._thread.is_alive())


def test_a_running_server_reports_once_that_nothing_can_be_kept(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    (folder / "expert_uses").write_text("a file")
    keeper = HeatKeeper(model(tmp_path, 0), "m", 2, lambda: HEAT, period_s=0.01)
    wait_until(lambda: not keeper._thread.is_alive())
    assert [record.getMessage() for record in caplog.records] == ["uses of experts are not kept"]
