"""Progress of loading: in the metrics, as a bar on a terminal, else as lines in the log."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from ballast.model.weights import shares_after_layers
from ballast.server.telemetry.load_progress import with_progress
from ballast.tiny import write_tiny_model
from ballast.weights.gguf import open_gguf
from support.servers.fake_model import FakeModel
from support.servers.process import FAKE, ServerProcess


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def load_in_steps(report):
    for share in (0.1, 0.3, 0.6, 0.65, 0.97):
        report(share)
    return FakeModel(num_slots=64, block_tokens=32, vocab_size=8)


def test_a_log_gets_a_line_at_every_quarter(caplog: pytest.LogCaptureFixture) -> None:
    reported: list[float] = []
    with caplog.at_level(logging.INFO, "ballast"):
        with_progress(load_in_steps, io.StringIO())(reported.append)
    assert [record.percent for record in caplog.records] == [25, 50, 75, 100]
    assert reported == [0.1, 0.3, 0.6, 0.65, 0.97]


def test_a_jump_over_several_quarters_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def load(report):
        report(0.8)
        return FakeModel(num_slots=64, block_tokens=32, vocab_size=8)

    with caplog.at_level(logging.INFO, "ballast"):
        with_progress(load, io.StringIO())(lambda _: None)
    assert [record.percent for record in caplog.records] == [75, 100]


def test_a_terminal_gets_a_bar_that_reaches_its_end_and_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    terminal = Terminal()
    with caplog.at_level(logging.INFO, "ballast"):
        with_progress(load_in_steps, terminal)(lambda _: None)
    assert "loading   0%" in terminal.getvalue()
    assert "loading 100%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")
    assert caplog.records == []


def test_a_load_that_fails_shows_no_end(caplog: pytest.LogCaptureFixture) -> None:
    def load(report):
        report(0.5)
        raise OSError("the disk is gone")

    with caplog.at_level(logging.INFO, "ballast"), pytest.raises(OSError, match="the disk is gone"):
        with_progress(load, io.StringIO())(lambda _: None)
    assert [record.percent for record in caplog.records] == [50]


def test_progress_counts_bytes_not_layers(tmp_path: Path) -> None:
    model = open_gguf(write_tiny_model(tmp_path, arch="v3").gguf)
    num_layers = 1 + max(int(name.split(".")[1]) for name in model.tensors if name.startswith("blk."))
    shares = shares_after_layers(model, num_layers)
    sizes = [
        sum(info.num_bytes for name, info in model.tensors.items() if name.startswith(f"blk.{layer}."))
        for layer in range(num_layers)
    ]
    total = sum(info.num_bytes for info in model.tensors.values())
    assert shares == pytest.approx([sum(sizes[: layer + 1]) / total for layer in range(num_layers)])
    assert shares == sorted(shares)
    assert shares[-1] < 1


def test_the_metric_and_readyz_advance_while_a_server_loads() -> None:
    with ServerProcess("--load_s", "4", module=FAKE, until_ready=False) as server:
        seen = {0.0}

        def reached_the_end(metrics: dict[str, float]) -> bool:
            seen.add(metrics["ballast_model_load_progress_ratio"])
            return metrics["ballast_model_load_progress_ratio"] == 1.0

        status, _, body = server.get("/readyz")
        assert status == 503
        assert 0 <= json.loads(body)["progress"] < 1
        server.wait_for(reached_the_end)
        server.event("ready")
        percents = [event["percent"] for event in server.events if event["event"] == "loading"]
    assert len(seen) >= 3
    assert percents == [25, 50, 75, 100]
