"""Reads the objects of a file for `ballast-operator render`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ballast_operator.api.inference_service import InferenceService, SpecError
from ballast_operator.api.model_cache import ModelCache
from ballast_operator.errors import InputError
from ballast_operator.names import API_VERSIONS, CACHE_KIND, KIND


def read_documents(filename: str) -> list[Any]:
    """The documents of a YAML file, or of standard input for `-`. Raises InputError."""
    try:
        text = sys.stdin.read() if filename == "-" else Path(filename).read_text()
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except OSError as error:
        raise InputError(f"{filename}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{filename}: {error}") from None


def caches_in(filename: str, documents: list[Any]) -> Iterator[ModelCache]:
    """The ModelCaches among the documents. Raises InputError."""
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == CACHE_KIND:
            _check_version(filename, document)
            try:
                yield ModelCache.from_api(document)
            except (SpecError, KeyError, TypeError) as error:
                raise InputError(f"{filename}: {CACHE_KIND}: {error}") from None


def _check_version(filename: str, document: Mapping[str, Any]) -> None:
    """Raises InputError unless the operator knows the document's version."""
    version = document.get("apiVersion")
    if version not in API_VERSIONS:
        kind, known = document["kind"], " or ".join(API_VERSIONS)
        raise InputError(f"{filename}: apiVersion {version!r} of {kind} is unknown; write {known}")


def services_in(filename: str, documents: list[Any]) -> list[InferenceService]:
    """The InferenceServices among the documents, at least one. Raises InputError."""
    services = []
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") != KIND:
            continue  # a file may hold other objects, too
        _check_version(filename, document)
        if not isinstance(document.get("metadata"), dict) or "name" not in document["metadata"]:
            raise InputError(f"{filename}: metadata.name is missing")
        try:
            services.append(InferenceService.from_api(document, strict=True))
        except SpecError as error:
            raise InputError(f"{filename}: {document['metadata']['name']}: {error}") from None
    if not services:
        raise InputError(f"{filename}: no {KIND} of {API_VERSIONS[0]} in it")
    return services
