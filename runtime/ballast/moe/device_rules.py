"""Applies placement rules in the form of KTransformers' optimize_config files to the modules of a model.

Modules are visited parents first. The first rule whose name (a regular expression, searched) and class (the last part
of its import path) both match claims a module; `recursive: false` also excludes all modules below it from later rules.
The rules only move routed experts, and only if there is a GPU; the devices of all other modules are fixed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ballast.errors import ConfigError, shown

_COMPARED_CHARS = 200
"""Number of characters of a pattern that are compared with module names, to suggest similar ones."""


@dataclass(frozen=True, slots=True)
class Module:
    """One node of the model's tree. `classes`: the last parts of the import paths of its class and base classes."""

    name: str
    classes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the file, checked. `index` counts from 1."""

    index: int
    pattern: str | None
    """The regular expression for names."""
    named: frozenset[str]
    """The modules of this model whose names it matches."""
    class_name: str | None
    device: str | None
    """cpu or cuda."""
    recursive: bool
    unused: tuple[str, ...] = ()
    """Keys and device numbers that have no effect here."""

    @property
    def match(self) -> str:
        """The match as written, for messages."""
        parts = {"name": self.pattern, "class": self.class_name}
        return ", ".join(f"{key}: {shown(text)}" for key, text in parts.items() if text is not None)

    def matches_name(self, module: Module) -> bool:
        return self.pattern is None or module.name in self.named

    def matches_class(self, module: Module) -> bool:
        return self.class_name is None or self.class_name.rpartition(".")[2] in module.classes


@dataclass(frozen=True, slots=True)
class RuleReport:
    """The modules that one rule claimed. `hidden_by`: earlier rules that claimed or excluded other modules that it
    matches."""

    rule: Rule
    modules: tuple[str, ...]
    hidden_by: tuple[int, ...]

    @property
    def shadowed(self) -> bool:
        """Whether earlier rules claimed all modules that it matches."""
        return not self.modules


@dataclass(frozen=True, slots=True)
class Placement:
    """Module → the device that the rules request. Modules without a requested device are missing."""

    devices: Mapping[str, str]
    rules: tuple[RuleReport, ...]
    notes: tuple[str, ...]

    def compared(self, device_of: Callable[[str], str], why: str) -> Placement:
        """The placement with a note about the modules that `device_of` places on another device, and `why`."""
        moved = [module for module, device in self.devices.items() if device != device_of(module)]
        if not moved:
            return self
        first = moved[0] or "the whole model"
        note = f"{len(moved)} modules are not placed as their rules request, starting with {first}: {why}"
        return replace(self, notes=(note, *self.notes))


NO_RULES = Placement({}, (), ())


def apply_rules(modules: Sequence[Module], rules: Sequence[Rule], file: Path) -> Placement:
    """Apply the rules of a file to `modules`, which lists parents first. Raises ConfigError for a rule that matches no
    module."""
    devices: dict[str, str] = {}
    claims: dict[int, list[str]] = {rule.index: [] for rule in rules}
    hidden: dict[int, set[int]] = {rule.index: set() for rule in rules}
    closed: dict[str, int] = {}
    for module in modules:
        matching = [rule for rule in rules if rule.matches_name(module) and rule.matches_class(module)]
        owner = next((index for above, index in closed.items() if not above or module.name.startswith(f"{above}.")), 0)
        if matching and not owner:
            first, *matching = matching
            owner = first.index
            claims[owner].append(module.name)
            if first.device is not None:
                devices[module.name] = first.device
            if not first.recursive:
                closed[module.name] = owner
        for rule in matching:
            hidden[rule.index].add(owner)
    reports = tuple(RuleReport(rule, tuple(claims[rule.index]), tuple(sorted(hidden[rule.index]))) for rule in rules)
    for rule in (report.rule for report in reports if not report.modules and not report.hidden_by):
        what = f"rule {rule.index} ({rule.match}) matches no module of this model{_near_miss(rule, modules)}"
        raise ConfigError("optimize_config_path", file, what)
    unused = dict.fromkeys(key for rule in rules for key in rule.unused)
    notes = (f"not used: {', '.join(unused)}; rules only place routed experts",) if unused else ()
    return Placement(devices, reports, notes)


def _near_miss(rule: Rule, modules: Sequence[Module]) -> str:
    """The end of a sentence that helps to correct a rule that matched nothing."""
    by_name = [module for module in modules if rule.matches_name(module)]
    if by_name:
        classes = sorted(set().union(*(module.classes for module in by_name)))
        what = "its classes are" if rule.pattern is None else f"the name matches {len(by_name)} modules, of class"
        return f"; {what} {', '.join(classes)}"
    plain = re.sub(r"[\\^$()?*+|\[\]]", "", re.sub(r"\\d[+*]?", "0", (rule.pattern or "")[:_COMPARED_CHARS]))
    names = [module.name for module in modules if rule.matches_class(module) and module.name]
    close = difflib.get_close_matches(plain, names, n=3, cutoff=0.4) or names[:3]
    return f"; modules with similar names: {', '.join(close)}" if close else ""
