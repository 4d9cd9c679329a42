"""The next start of the same model finds the uses of experts that a server has counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ballast.model.metadata import read_spec
from ballast.moe.kept_uses import keep_heat, read_kept_uses
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models.written import write_tiny_model

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
    keep_heat(gguf, name, 2, None)
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
