"""Tests of the chart without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.cluster.helm import Helm


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path)
