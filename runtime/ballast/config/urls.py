"""Checks URLs that users write."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_http_url(text: str) -> bool:
    """Whether `text` is an http or https URL with a host and only valid characters."""
    if any(char.isspace() or not char.isprintable() for char in text):
        return False
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        return False
