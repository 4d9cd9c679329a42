"""A later start of a model repeats no measurement, and each start reports how long its stages took."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ballast.engine.engine import EngineState
from ballast.engine.startup.build import EngineSettings, build_engine
from ballast.engine.startup.loading import _placed, load_runner
from ballast.model.metadata import read_spec
from ballast.weights.gguf import open_gguf
from devkit.models.specs.deepseek import R1_SPEC
from devkit.models.written import MakeTiny

SETTINGS = EngineSettings(
    cache_lens=512,
    max_batch_size=2,
    max_new_tokens=16,
    chunk_size=16,
    prefill_chunk_size=16,
    max_queue=8,
    block_tokens=16,
    measurements="kept",
)


@pytest.fixture(autouse=True)
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path / "volume"))
    return tmp_path / "volume/measurements"


def started(file: Path, settings: EngineSettings, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """The log line of a start; the engine's numbers must match it."""
    caplog.clear()
    caplog.set_level(logging.INFO)
    gguf = open_gguf(file)
    spec = read_spec(gguf, None)
    engine = build_engine(lambda report: load_runner(gguf, spec, spec.vocab_size, settings, report), settings, 512)
    assert engine.start_seconds == {}
    engine.start()
    try:
        deadline = time.monotonic() + 60
        while engine.state is EngineState.LOADING and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.state is EngineState.READY, engine.failure
        (record,) = (record for record in caplog.records if record.message == "started")
        line = vars(record)
        assert line["seconds"] == pytest.approx(sum(engine.start_seconds.values()), abs=0.01)
        assert {f"{phase}_s" for phase in engine.start_seconds} <= set(line)
        return line
    finally:
        engine.stop(0.0)


def test_a_start_reports_its_phases_and_the_next_one_measures_nothing(
    written: MakeTiny, volume: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    first = started(file, SETTINGS, caplog)
    assert (first["not_measured_again"], first["weights_s"] > 0, first["measured_s"] > 0) == ([], True, True)
    again = started(file, SETTINGS, caplog)
    assert again["not_measured_again"] == ["step_costs"]
    (kept,) = volume.iterdir()
    assert json.loads(kept.read_text())["measured"].keys() == {"step_costs"}


@pytest.mark.parametrize(
    "change",
    [
        {"measurements": "new"},
        {"measurements": "off"},
        {"max_batch_size": 3},
        {"chunk_size": 8},
        {"prefill_chunk_size": 32},
        {"block_tokens": 32},
        {"activation_bytes": 2},
        {"cpu_threads": 2},
        {"cpu_isa": "reference"},
    ],
    ids=str,
)
def test_a_start_under_other_conditions_measures(
    written: MakeTiny, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    started(file, SETTINGS, caplog)
    assert started(file, replace(SETTINGS, **change), caplog)["not_measured_again"] == []


def test_measurements_are_kept_while_experts_follow_use() -> None:
    """The uses that a server has counted change which layers have most experts in GPU memory at the next start."""
    few, moved, more = (
        replace(SETTINGS, gpu_experts=((*range(first),), (*range(second),)))
        for first, second in ((40, 60), (55, 44), (255, 256))
    )
    follow = [_placed(R1_SPEC, replace(each, updates_gpu_experts=True)) for each in (few, moved, more)]
    stay = [_placed(R1_SPEC, each) for each in (few, moved, more)]
    assert follow[0] == follow[1] != follow[2]
    assert stay[0] != stay[1]
    assert follow[0] not in stay


def test_another_model_or_disabled_measurements_do_not_use_stored_ones(
    written: MakeTiny, volume: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    started(file, replace(SETTINGS, measurements="off"), caplog)
    assert not volume.exists()
    started(file, SETTINGS, caplog)
    other = written(arch="v3", mla="split", quant="q8_0").gguf
    assert started(other, SETTINGS, caplog)["not_measured_again"] == []
    assert len(list(volume.iterdir())) == 2


def test_the_same_model_in_another_folder_is_not_measured_again(
    written: MakeTiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    started(file, SETTINGS, caplog)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(file.read_bytes())
    assert started(copy, SETTINGS, caplog)["not_measured_again"] == ["step_costs"]


def test_a_start_without_a_folder_for_files_measures(
    written: MakeTiny, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> Path:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("ballast.engine.startup.loading.measurements_folder", refused)
    assert started(written(arch="v3", mla="split", quant="f32").gguf, SETTINGS, caplog)["not_measured_again"] == []
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == [
        "measurements are not kept"
    ]
