"""Load progress: in the metrics, as a bar on a terminal, otherwise as log lines."""

from __future__ import annotations

import io
import itertools
import json
import logging
from pathlib import Path

import pytest

from ballast.engine.startup.load_progress import Progress, with_progress
from ballast.model.weights import shares_after_layers
from ballast.weights.gguf import open_gguf
from devkit.models.written import write_tiny_model
from devkit.servers.fake_model import FakeModel
from devkit.servers.process import FAKE, ServerProcess


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


GB = 10**9


class Steps:
    """A load that reports progress at the given seconds."""

    def __init__(self, *steps: tuple[float, float]) -> None:
        self.now = 0.0
        self._steps = steps

    def clock(self) -> float:
        return self.now

    def load(self, report):
        for seconds, share in self._steps:
            self.now = seconds
            report(share)
        return FakeModel(num_slots=64, block_tokens=32, vocab_size=8)


def test_progress_is_logged_at_most_every_ten_seconds_with_speed_and_remaining_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reported: list[float] = []
    steps = Steps((4, 0.1), (11, 0.2), (19, 0.3), (21, 0.4), (40, 0.8), (45, 1.0))
    with caplog.at_level(logging.INFO, "ballast"):
        with_progress(steps.load, 100 * GB, io.StringIO(), steps.clock)(reported.append)
    lines = [(record.percent, record.gb, record.gb_per_s, vars(record).get("left_s")) for record in caplog.records]
    assert lines == [
        (20, 20.0, 1.82, 44),
        (40, 40.0, 1.9, 31),
        (80, 80.0, 2.0, 10),
        (100, 100.0, 2.22, None),
    ]
    assert reported == [0.1, 0.2, 0.3, 0.4, 0.8, 1.0]


@pytest.mark.parametrize("seconds", [100, 1000, 36_000])
def test_a_log_gets_about_twenty_lines_however_long_a_load_takes(
    caplog: pytest.LogCaptureFixture, seconds: int
) -> None:
    steps = Steps(*((seconds * number / 1000, number / 1000) for number in range(1, 1001)))
    with caplog.at_level(logging.INFO, "ballast"):
        with_progress(steps.load, 100 * GB, io.StringIO(), steps.clock)(lambda _: None)
    percents = [record.percent for record in caplog.records]
    assert 9 <= len(percents) <= 22
    assert percents == sorted(set(percents))
    assert percents[-1] == 100
    steps_of = [later - earlier for earlier, later in itertools.pairwise(percents[:-1])]
    assert min(steps_of) >= 5


def test_a_quick_load_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps((1, 0.5), (2, 0.9))
    with caplog.at_level(logging.INFO, "ballast"):
        with_progress(steps.load, GB, io.StringIO(), steps.clock)(lambda _: None)
    assert [record.percent for record in caplog.records] == [100]


def test_no_time_is_no_speed() -> None:
    assert (Progress(GB, 0.0, 0.0).gb_per_s, Progress(GB, 0.0, 0.0).left_s) == (0.0, 0.0)


def test_a_terminal_gets_a_bar_that_reaches_its_end_and_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    terminal = Terminal()
    steps = Steps((25, 0.5), (50, 0.97))
    with caplog.at_level(logging.INFO, "ballast"):
        with_progress(steps.load, 100 * GB, terminal, steps.clock)(lambda _: None)
    assert "100.0/100.0 GB, 2.00 GB/s, 0 s left" in terminal.getvalue()
    assert "loading   0%" in terminal.getvalue()
    assert "loading 100%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")
    assert caplog.records == []


def test_a_load_that_fails_shows_no_end(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps()

    def load(report):
        report(0.5)
        steps.now = 12
        report(0.6)
        raise OSError("the disk is gone")

    with caplog.at_level(logging.INFO, "ballast"), pytest.raises(OSError, match="the disk is gone"):
        with_progress(load, GB, io.StringIO(), steps.clock)(lambda _: None)
    assert [record.percent for record in caplog.records] == [60]


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
    assert percents == [100]
