"""Assigns modules to devices, by rules in the form of KTransformers' optimize_config files.

Modules are visited parents first; the first rule whose name (a regular expression, searched) and class (the last part
of its import path) both match claims a module, and `recursive: false` leaves everything below it unvisited.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ballast.errors import ConfigError, shown

_COMPARED_CHARS = 200
"""Of a name that matches nothing, when names like it are looked for."""


@dataclass(frozen=True, slots=True)
class Module:
    """One node of the model's tree. `classes`: last parts of its class's name and of the classes it derives from."""

    name: str
    classes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the file, checked. `index` counts from 1."""

    index: int
    pattern: str | None
    """The regular expression that names are searched for."""
    named: frozenset[str]
    """The modules of this model that it is found in."""
    class_name: str | None
    device: str | None
    notes: tuple[str, ...]
    recursive: bool

    @property
    def match(self) -> str:
        """The match as written, for messages."""
        parts = []
        if self.pattern is not None:
            parts.append(f"name: {shown(self.pattern)}")
        if self.class_name is not None:
            parts.append(f"class: {shown(self.class_name)}")
        return ", ".join(parts)

    def matches_name(self, module: Module) -> bool:
        return self.pattern is None or module.name in self.named

    def matches_class(self, module: Module) -> bool:
        return self.class_name is None or last_part(self.class_name) in module.classes


@dataclass(frozen=True, slots=True)
class RuleReport:
    """What one rule did. `hidden_by`: rules that had claimed, or closed off, modules that this one also matches."""

    rule: Rule
    modules: tuple[str, ...]
    hidden_by: tuple[int, ...]

    @property
    def shadowed(self) -> bool:
        """Everything that it matches had gone to earlier rules."""
        return not self.modules


@dataclass(frozen=True, slots=True)
class Assignment:
    """The device of every module, and how the rules led there."""

    devices: Mapping[str, str]
    rules: tuple[RuleReport, ...]
    notes: tuple[str, ...]

    @property
    def asked_devices(self) -> dict[str, str]:
        """The device that a rule names, by module; modules without one are left out."""
        return {
            module: report.rule.device
            for report in self.rules
            if report.rule.device is not None
            for module in report.modules
        }


def assign(
    modules: Sequence[Module], rules: Sequence[Rule], *, source: object = "", num_cuda_devices: int = 0
) -> Assignment:
    """Apply `rules` (from `source`, for messages) to `modules`, given parents first.

    A module without a rule, or whose rule names no device, runs on the CPU. So does one assigned to CUDA where there
    is none. Raises ConfigError for a rule that matches no module and for a CUDA device that is not there.
    """
    devices: dict[str, str] = {}
    claims: dict[int, list[str]] = {rule.index: [] for rule in rules}
    hidden: dict[int, set[int]] = {rule.index: set() for rule in rules}
    closed: dict[str, int] = {}
    on_cpu_instead = 0
    for module in modules:
        matching = [rule for rule in rules if rule.matches_name(module) and rule.matches_class(module)]
        owner = _closing_rule(module.name, closed)
        device = None
        if matching and owner is None:
            first, *matching = matching
            owner = first.index
            claims[first.index].append(module.name)
            device = first.device
            if not first.recursive:
                closed[module.name] = first.index
        for rule in matching:
            assert owner is not None
            hidden[rule.index].add(owner)
        devices[module.name] = _available(device, num_cuda_devices, source)
        on_cpu_instead += device is not None and device != "cpu" and devices[module.name] == "cpu"
    reports = tuple(RuleReport(rule, tuple(claims[rule.index]), tuple(sorted(hidden[rule.index]))) for rule in rules)
    for report in reports:
        if not report.modules and not report.hidden_by:
            raise ConfigError(
                "optimize_config_path",
                source,
                f"rule {report.rule.index} ({report.rule.match}) matches no module of this model"
                f"{_near_miss(report.rule, modules)}",
            )
    return Assignment(devices, reports, _notes(rules, on_cpu_instead))


def _closing_rule(name: str, closed: Mapping[str, int]) -> int | None:
    return next((index for above, index in closed.items() if above == "" or name.startswith(f"{above}.")), None)


def _available(device: str | None, num_cuda_devices: int, source: object) -> str:
    if device is None or device == "cpu" or num_cuda_devices == 0:
        return "cpu"
    number = int(device.partition(":")[2] or 0)
    if number >= num_cuda_devices:
        raise ConfigError(
            "optimize_config_path", source, f"assigns modules to {device}; there are {num_cuda_devices} CUDA devices"
        )
    return f"cuda:{number}"


def _notes(rules: Iterable[Rule], on_cpu_instead: int) -> tuple[str, ...]:
    notes = list(dict.fromkeys(note for rule in rules for note in rule.notes))
    if on_cpu_instead:
        notes.insert(0, f"{on_cpu_instead} modules are assigned to CUDA; without a usable device they run on the CPU")
    return tuple(notes)


def _near_miss(rule: Rule, modules: Sequence[Module]) -> str:
    """The end of a sentence that helps to correct a rule that matched nothing."""
    by_name = [module for module in modules if rule.matches_name(module)]
    by_class = [module for module in modules if rule.matches_class(module)]
    if rule.pattern is None or (by_name and rule.class_name is not None):
        classes = sorted(set().union(*(module.classes for module in by_name)))
        what = "its classes are" if rule.pattern is None else f"the name matches {len(by_name)} modules, of class"
        return f"; {what} {', '.join(classes)}"
    plain = re.sub(r"\\d[+*]?", "0", rule.pattern[:_COMPARED_CHARS])
    plain = re.sub(r"[\\^$()?*+|\[\]]", "", plain)
    names = [module.name for module in by_class if module.name]
    close = difflib.get_close_matches(plain, names, n=3, cutoff=0.4) or names[:3]
    kind = "" if rule.class_name is None else f" of class {last_part(rule.class_name)}"
    return f"; modules{kind} with names like it: {', '.join(close)}" if close else ""


def last_part(import_path: str) -> str:
    """The class's own name in the path that imports it."""
    return import_path.rpartition(".")[2]
