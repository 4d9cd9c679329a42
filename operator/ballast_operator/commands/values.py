"""Types of the command line's values. Each raises argparse.ArgumentTypeError for a value that cannot be used."""

from __future__ import annotations

import argparse
import math
import re
from typing import Any

from ballast_operator.limits.quotas import ANY_NAMESPACE, KEYS
from ballast_operator.names import NAME_PATTERN, NAMESPACE_PATTERN
from ballast_operator.quantity import parse_count

MIN_RESYNC_S, MAX_RESYNC_S = 1, 300
IMAGE_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._:/@-]*"


def service_name(text: str) -> str:
    """The name of an InferenceService."""
    return _matching(NAME_PATTERN, text, "name of an InferenceService")


def namespace(text: str) -> str:
    """The name of a namespace."""
    return _matching(NAMESPACE_PATTERN, text, "name of a namespace")


def quota(text: str) -> tuple[str, dict[str, str]]:
    """A namespace and its limits, such as team-a:gpus=4."""
    named, _, terms = text.partition(":")
    if named != ANY_NAMESPACE:
        namespace(named)
    limits: dict[str, str] = {}
    for key, _, quantity in (term.partition("=") for term in terms.split(",")):
        if key not in KEYS:
            raise argparse.ArgumentTypeError(f"{key!r} in {text!r} is not a quota; use {', '.join(KEYS)}")
        if key in limits:
            raise argparse.ArgumentTypeError(f"{key} is twice in {text!r}")
        try:
            limit = parse_count(quantity)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{key} in {text!r}: {error}") from None
        if limit < 0:
            raise argparse.ArgumentTypeError(f"{key} in {text!r}: {quantity} is negative; 0 allows none")
        limits[key] = quantity
    return named, limits


class AddQuota(argparse.Action):
    """Collects quotas by namespace, and rejects a second one for the same namespace, which would replace the first."""

    def __call__(self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: Any, _: Any = None) -> None:
        """Raises ArgumentError."""
        named, limits = value
        found = getattr(options, self.dest)
        if named in found:
            raise argparse.ArgumentError(
                self, f"{named} has two quotas; write its limits as one, such as a:gpus=4,pods=8"
            )
        setattr(options, self.dest, {**found, named: limits})


def lease_name(text: str) -> str:
    """The name of a Lease."""
    # With a namespace, the name fits the name of a field manager.
    what = "name of a Lease: up to 63 lower-case letters, digits, - and ."
    return _matching(r"[a-z0-9][-a-z0-9.]{0,62}", text, what)


def image(text: str) -> str:
    """The reference of an image."""
    return _matching(IMAGE_PATTERN, text, "reference of an image such as registry.example.org/name:tag")


def image_prefix(text: str) -> str:
    """The reference of an image, or a prefix of such references."""
    return _matching(IMAGE_PATTERN, text, "image or prefix of images such as registry.test/team/")


def directory(text: str) -> str:
    """An absolute directory."""
    if not text.startswith("/") or ".." in text.split("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not an absolute directory such as /srv/models")
    return text


def variables(text: str) -> str:
    """A variable's name, or a prefix of names followed by *."""
    what = "variable name such as NCCL_DEBUG, or prefix such as NCCL_*"
    return _matching(r"[A-Za-z_][A-Za-z0-9_]*\*?|\*", text, what)


def node_selector(text: str) -> dict[str, str]:
    """Labels, such as pool=models,zone=a."""
    return dict(label(term) for term in text.split(","))


def port(text: str) -> int:
    """A port, or 0 for any free port."""
    if not (text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def resync_interval(text: str) -> float:
    """Seconds between two resyncs."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_RESYNC_S <= seconds <= MAX_RESYNC_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {MIN_RESYNC_S} to {MAX_RESYNC_S}")
    return seconds


def prometheus_duration(text: str) -> str:
    """A duration in Prometheus' notation."""
    return _matching(r"([0-9]+(ms|s|m|h))+", text, "duration such as 30s or 1m30s")


def collector_url(text: str) -> str:
    """The URL of a collector of traces."""
    return _matching(r"https?://[^\s/?#]+(/[^\s?#]*)?", text, "URL such as http://collector.tracing.svc:4318")


def label(text: str) -> tuple[str, str]:
    """A label, as KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _matching(pattern: str, text: str, what: str) -> str:
    if not re.fullmatch(pattern, text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid {what}")
    return text
