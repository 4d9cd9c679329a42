"""Reads placement rules in the form of KTransformers' optimize_config files.

A file is a list of `{match: {name, class}, replace: {class, kwargs}, recursive}`. Ballast uses the match and the
device. KTransformers' classes, kernels and other options are accepted and have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ballast.documents.small_file import DocumentError
from ballast.documents.yaml_document import Plain, read_yaml
from ballast.errors import ConfigError, shown
from ballast.moe.device_rules import Module, Placement, Rule, apply_rules
from ballast.moe.match_names import PatternError, match_names

_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,2})?")
_USED_DEVICES = ("generate_device", "device")
_UNUSED_DEVICES = ("prefill_device", "out_device")
_UNUSED = (
    *_UNUSED_DEVICES,
    *("generate_op", "prefill_op", "backend"),
    *("absorb_for_prefill", "transfer_map", "per_layer_prefill_intput_threshold"),
)


class _RuleError(Exception):
    """An invalid rule. The message describes the problem."""


def read_placement(file: Path, modules: Sequence[Module]) -> Placement:
    """Apply a file's rules to a model's modules. Raises ConfigError with the rule and its problem."""
    try:
        document = read_yaml(file)
    except DocumentError as error:
        raise ConfigError("optimize_config_path", file, str(error)) from error
    if not isinstance(document, list) or not document:
        raise ConfigError("optimize_config_path", file, "must be a list of rules, each with match and replace")
    for index, entry in enumerate(document, start=1):
        try:
            _check(entry)
        except _RuleError as error:
            raise _invalid(file, index, entry, str(error)) from error
    named = _named(file, document, modules)
    rules = [_rule(index, entry, named.get(index, frozenset())) for index, entry in enumerate(document, start=1)]
    return apply_rules(modules, rules, file)


def _check(entry: Plain) -> None:
    """Raises _RuleError if an entry is not a rule."""
    rule = _mapping("a rule", entry, required=("match", "replace"), optional=("recursive",))
    match = _mapping("match", rule["match"], optional=("name", "class"))
    if match.get("name") is None and match.get("class") is None:
        raise _RuleError("match must have name, class, or both")
    replaced = _mapping("replace", rule["replace"], optional=("class", "kwargs"))
    for what, text in (("match.name", match.get("name")), ("match.class", match.get("class")),
                       ("replace.class", replaced.get("class"))):  # fmt: skip
        if text is not None and (not isinstance(text, str) or not text):
            raise _RuleError(f"{what} must be a string, not {shown(text)}")
    if not isinstance(rule.get("recursive", True), bool):
        raise _RuleError(f"recursive must be true or false, not {shown(rule['recursive'])}")
    kwargs = _kwargs(replaced)
    for key in (*_USED_DEVICES, *_UNUSED_DEVICES):
        device = kwargs.get(key)
        if device is not None and (not isinstance(device, str) or not _DEVICE.fullmatch(device)):
            raise _RuleError(f"replace.kwargs.{key} must be cpu, cuda or cuda:N, not {shown(device)}")


def _mapping(
    what: str, value: Plain, *, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    allowed = (*required, *optional)
    if not isinstance(value, dict):
        raise _RuleError(f"{what} must be a mapping with {', '.join(allowed)}")
    for key in value:
        if key not in allowed:
            raise _RuleError(f"{what} has {shown(key)}; allowed are {', '.join(allowed)}")
    for key in required:
        if key not in value:
            raise _RuleError(f"{what} needs {key}")
    return value


def _kwargs(replaced: dict[str, Any]) -> dict[str, Any]:
    kwargs = replaced.get("kwargs")
    return {} if kwargs is None else _mapping("replace.kwargs", kwargs, optional=(*_USED_DEVICES, *_UNUSED))


def _rule(index: int, entry: Any, named: frozenset[str]) -> Rule:
    """A checked entry as a rule."""
    match, kwargs = entry["match"], _kwargs(entry["replace"])
    device = next((kwargs[key] for key in _USED_DEVICES if kwargs.get(key) is not None), None)
    kind, _, number = (device or "").partition(":")
    unused = [key for key in _UNUSED if key in kwargs]
    if int(number or 0):
        unused.append(f"the number in {device}, because one GPU is used")
    return Rule(
        index=index,
        pattern=match.get("name"),
        named=named,
        class_name=match.get("class"),
        device=kind or None,
        recursive=entry.get("recursive", True),
        unused=tuple(unused),
    )


def _named(file: Path, entries: Sequence[Any], modules: Sequence[Module]) -> dict[int, frozenset[str]]:
    """Index of a rule → the modules that its pattern matches."""
    patterns = {index: entry["match"]["name"] for index, entry in enumerate(entries, 1) if entry["match"].get("name")}
    indices = list(patterns)
    try:
        found = match_names(list(patterns.values()), [module.name for module in modules])
    except PatternError as error:
        index, hint = indices[error.index], ""
        if "bad character range" in str(error):
            hint = "; write a range of numbers as alternatives, (4|5|6), not in brackets"
        raise _invalid(file, index, {"match": {"name": patterns[index]}}, f"name {error}{hint}") from error
    return dict(zip(indices, found, strict=True))


def _invalid(file: Path, index: int, entry: Plain, problem: str) -> ConfigError:
    found = entry.get("match") if isinstance(entry, dict) else None
    match = found if isinstance(found, dict) else {}
    described = ", ".join(f"{key}: {shown(match[key])}" for key in ("name", "class") if key in match)
    return ConfigError("optimize_config_path", file, f"rule {index}{f' ({described})' if described else ''}: {problem}")
