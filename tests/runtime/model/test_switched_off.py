"""A feature that a start has disabled is reported once, with the first reason."""

from __future__ import annotations

import pytest

from ballast.model.switched_off import FEATURES, SwitchedOff


def test_each_feature_is_reported_once_with_the_first_reason(caplog: pytest.LogCaptureFixture) -> None:
    off = SwitchedOff()
    for feature in FEATURES:
        off.add(feature, "it differs")
        off.add(feature, "what follows from that")
    assert off.reasons == dict.fromkeys(FEATURES, "it differs")
    assert [(vars(record)["switched_off"], vars(record)["reason"]) for record in caplog.records] == [
        (feature, "it differs") for feature in FEATURES
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert len({record.message for record in caplog.records}) == len(FEATURES)
