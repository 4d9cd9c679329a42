"""Words that the calling thread itself sets and waits for."""

from __future__ import annotations

import pytest
import torch

from ballast.awake_clock import AwakeClock
from ballast.errors import EngineDeadError
from devkit.models import cpu_hand_off
from devkit.models.cpu_hand_off import HostSignals


def test_a_word_that_is_never_raised_is_an_error():
    with pytest.raises(EngineDeadError, match=r"routed layer 1 were not done within 0\.01 s"):
        HostSignals(0.01).await_word(torch.zeros(2, dtype=torch.int32), 1)


def test_a_pause_of_the_process_does_not_count_as_waiting(monkeypatch: pytest.MonkeyPatch):
    words, system_s, turns = torch.zeros(1, dtype=torch.int32), [0.0], []

    def turn(_: float) -> None:
        system_s[0] += 3600.0 if not turns else 0.01
        turns.append(1)
        words[0] = len(turns) == 5

    monkeypatch.setattr(cpu_hand_off.time, "sleep", turn)
    monkeypatch.setattr(AwakeClock, "for_limit", lambda limit_s: AwakeClock(limit_s / 8, lambda: system_s[0]))
    HostSignals(25.0).await_word(words, 0)
    assert words[0] == 0
