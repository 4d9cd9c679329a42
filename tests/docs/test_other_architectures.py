"""The page about what is not supported names the architectures that the error message describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ballast.families.registry import ARCHITECTURES
from ballast.model.metadata.other_architectures import LOOK_ALIKES

PAGE = Path(__file__).parents[2] / "docs/about/not-supported.md"


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_an_architecture_that_is_described_is_on_the_page(name: str) -> None:
    assert name not in ARCHITECTURES
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")
