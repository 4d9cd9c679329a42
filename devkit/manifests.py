"""YAML of Kubernetes objects, read and written by libyaml: definitions are long, and Python takes ten times as long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


def objects_of(text: str) -> list[dict[str, Any]]:
    """The objects of a YAML text, without its empty documents."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def text_of(objects: Iterable[dict[str, Any]]) -> str:
    """One document per object, its fields in their order."""
    return str(yaml.dump_all(objects, Dumper=yaml.CSafeDumper, sort_keys=False))
