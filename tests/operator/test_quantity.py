"""Quantities of the Kubernetes API."""

import pytest

from ballast_operator.quantity import parse_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("440Gi", 440 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("1G", 10**9),
        ("100", 100),
        ("1500m", 2),
        (".5Ki", 512),
        ("-1Ki", -1024),
    ],
)
def test_quantities(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "--1", "4e99999999999", "1GiB", "1e3x", "1 Gi"])
def test_invalid_quantities_are_rejected(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_bytes(text)
