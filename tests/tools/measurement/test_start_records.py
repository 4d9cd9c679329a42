"""The benchmark of starts: its records."""

from __future__ import annotations

import json

import pytest

from benchmarks.serving.starts import show


def test_a_record_of_starts_has_every_figure_that_any_start_has(capsys: pytest.CaptureFixture[str]) -> None:
    begins = {"ready_s": 5.0, "weights_s": 3.0, "not_measured_again": []}
    starts = [begins, {**begins, "compiled_s": 60.0}, {**begins, "graphs_s": 0.5}]
    show("a model", "later start", starts, {})
    record = json.loads(capsys.readouterr().out)
    assert record["ready_s"] == [5.0, 5.0, 5.0]
    assert record["compiled_s"] == [None, 60.0, None]
    assert record["graphs_s"] == [None, None, 0.5]
    assert record["after_weights_s"] == [2.0, 2.0, 2.0]


def test_a_record_of_starts_lists_measurements_that_no_start_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    kept = [["pcie_share", "joint_split"], ["pcie_share", "joint_split", "step_costs"]]
    starts = [{"ready_s": 5.0, "weights_s": 3.0, "not_measured_again": names} for names in kept]
    show("a model", "later start", starts, {})
    assert json.loads(capsys.readouterr().out)["not_measured_again"] == ["joint_split", "pcie_share"]
