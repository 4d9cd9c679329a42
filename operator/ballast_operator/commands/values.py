"""Types of the command line's values. Each raises argparse.ArgumentTypeError for a value that cannot be used."""

from __future__ import annotations

import argparse
import math
import re

from ballast_operator.limits.quotas import ANY_NAMESPACE, KEYS
from ballast_operator.names import NAME_PATTERN, NAMESPACE_PATTERN
from ballast_operator.quantity import parse_count

MIN_RESYNC_S, MAX_RESYNC_S = 1, 300
IMAGE_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._:/@-]*"


def service_name(text: str) -> str:
    """The name of an InferenceService."""
    if not re.fullmatch(NAME_PATTERN, text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of an InferenceService")
    return text


def namespace(text: str) -> str:
    """The name of a namespace."""
    if not re.fullmatch(NAMESPACE_PATTERN, text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a namespace")
    return text


def quota(text: str) -> tuple[str, dict[str, str]]:
    """A namespace and its limits, such as team-a:gpus=4."""
    named, _, terms = text.partition(":")
    limits = dict(term.partition("=")[::2] for term in terms.split(","))
    if named != ANY_NAMESPACE:
        namespace(named)
    for key, quantity in limits.items():
        if key not in KEYS:
            raise argparse.ArgumentTypeError(f"{key!r} in {text!r} has no quota: {', '.join(KEYS)} have")
        try:
            parse_count(quantity)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{key} in {text!r}: {error}") from None
    return named, limits


def lease_name(text: str) -> str:
    """The name of a Lease."""
    if not re.fullmatch(r"[a-z0-9][-a-z0-9.]{0,62}", text):  # with a namespace, it fits the name of a field manager
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of a Lease: up to 63 lower-case letters, digits, - and ."
        )
    return text


def image(text: str) -> str:
    """The reference of an image."""
    if not re.fullmatch(IMAGE_PATTERN, text):
        raise argparse.ArgumentTypeError(f"{text!r} is no reference of an image such as registry.example.org/name:tag")
    return text


def image_prefix(text: str) -> str:
    """What references of images begin with."""
    if not re.fullmatch(IMAGE_PATTERN, text):
        raise argparse.ArgumentTypeError(f"{text!r} is no image, nor what one begins with, such as registry.test/team/")
    return text


def directory(text: str) -> str:
    """An absolute directory."""
    if not text.startswith("/") or ".." in text.split("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is no absolute directory such as /srv/models")
    return text


def variables(text: str) -> str:
    """A variable's name, or the beginning of names with a * behind it."""
    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?\*?", text) or not text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no variable's name such as NCCL_DEBUG, nor a beginning such as NCCL_*"
        )
    return text


def node_selector(text: str) -> dict[str, str]:
    """Labels, such as pool=models,zone=a."""
    return dict(label(term) for term in text.split(","))


def port(text: str) -> int:
    """A port, or 0 for any free one."""
    if not (text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535")
    return int(text)


def resync_interval(text: str) -> float:
    """Seconds between two resyncs."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_RESYNC_S <= seconds <= MAX_RESYNC_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from {MIN_RESYNC_S} to {MAX_RESYNC_S}")
    return seconds


def prometheus_duration(text: str) -> str:
    """A duration as Prometheus writes it."""
    if not re.fullmatch(r"([0-9]+(ms|s|m|h))+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 30s or 1m30s")
    return text


def collector_url(text: str) -> str:
    """The URL of a collector of traces."""
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no URL such as http://collector.tracing.svc:4318")
    return text


def label(text: str) -> tuple[str, str]:
    """A label, as KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
