"""Assigns modules to devices, by rules in the form of KTransformers' optimize_config files.

A file is a list of `{match: {name, class}, replace: {class, kwargs}, recursive}`. Modules are visited parents first;
the first rule whose name (a regular expression, searched) and class (the last part of its import path) both match
claims a module, and `recursive: false` leaves everything below it unvisited. Ballast takes the devices from the rules.
Which kernel computes a module is its own choice: KTransformers' names for kernels and classes are accepted, and
reported as not used.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ballast.errors import ConfigError

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")

_KERNEL_NOTE = "kernels follow the device and the file's own quantisation, nothing is re-quantised"
_ISA_NOTE = "the CPU kernels read the types of the file"
BACKENDS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "KLinearMarlin",
            "VLinearMarlin",
            "KLinearTorch",
            "KLinearCPUInfer",
            "KLinearFP8",
            "KLinearQ8",
            "KLinearIPEXLLM",
            "KExpertsCPU",
            "KExpertsTorch",
            "KExpertsMarlin",
        ),
        _KERNEL_NOTE,
    ),
    **dict.fromkeys(("llamafile", "AMXInt4", "AMXInt8", "AMXBF16"), _ISA_NOTE),
}
"""KTransformers' kernels → what is done instead."""

CLASSES = frozenset(
    {
        "default",
        "KTransformersLinear",
        "KTransformersExperts",
        "KTransformersExpertsV2",
        "KDeepseekV2MoE",
        "KDeepseekV3MoE",
        "KDeepseekV3MoEV2",
        "KMoEGate",
        "KMoEGateDeepSeekV3",
        "KMoEGateIPEXLLM",
        "KDeepseekV2Attention",
        "KDeepseekV3Attention",
        "flashinfer_attn",
        "KDeepseekV2Model",
        "RotaryEmbedding",
        "RotaryEmbeddingV2",
        "RotaryEmbeddingV3",
        "RotaryEmbeddingV4",
        "YarnRotaryEmbedding",
        "YarnRotaryEmbeddingV2",
        "YarnRotaryEmbeddingV3",
        "RMSNorm",
        "KDeepseekRMSNormIPEXLLM",
        "kDeepseekV3MLP",
        "KDeepseekV3MLP",
        "KDeepseekV2MLP",
    }
)
"""Last parts of the import paths that `replace.class` may name. Ballast keeps its own implementation for each."""

_DEVICE_KEYS = ("generate_device", "device")
_BACKEND_KEYS = ("generate_op", "prefill_op", "backend")
_IGNORED_KEYS: Mapping[str, str] = {
    "prefill_device": "a module's prefill runs where its decode runs",
    "out_device": "results go where they are used next",
    "absorb_for_prefill": "attention is absorbed in prefill too",
    "transfer_map": "hidden states follow the devices of the layers",
    "per_layer_prefill_intput_threshold": "the length of a prefill step is chunk_size",
}
_KEYS = (*_DEVICE_KEYS, *_BACKEND_KEYS, *_IGNORED_KEYS)


@dataclass(frozen=True, slots=True)
class Module:
    """One node of the model's tree. `classes`: last parts of its class's name and of the classes it derives from."""

    name: str
    classes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the file, checked. `index` counts from 1."""

    index: int
    name: re.Pattern[str] | None
    class_name: str | None
    device: str | None
    notes: tuple[str, ...]
    recursive: bool

    @property
    def match(self) -> str:
        """The match as written, for messages."""
        parts = []
        if self.name is not None:
            parts.append(f"name: {self.name.pattern}")
        if self.class_name is not None:
            parts.append(f"class: {self.class_name}")
        return ", ".join(parts)

    def matches_name(self, module: Module) -> bool:
        return self.name is None or self.name.search(module.name) is not None

    def matches_class(self, module: Module) -> bool:
        return self.class_name is None or _last(self.class_name) in module.classes


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


def read_rules(file: Path) -> tuple[Rule, ...]:
    """The rules of a file. Raises ConfigError naming the rule and what is wrong with it."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("optimize_config_path", file, f"cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("optimize_config_path", file, f"is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, list) or not document:
        raise ConfigError("optimize_config_path", file, "must be a list of rules, each with match and replace")
    return tuple(_Parser(file, index).rule(entry) for index, entry in enumerate(document, start=1))


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
    if rule.name is None or (by_name and rule.class_name is not None):
        classes = sorted(set().union(*(module.classes for module in by_name)))
        what = "its classes are" if rule.name is None else f"the name matches {len(by_name)} modules, of class"
        return f"; {what} {', '.join(classes)}"
    plain = re.sub(r"\\d[+*]?", "0", rule.name.pattern)
    plain = re.sub(r"[\\^$()?*+|\[\]]", "", plain)
    names = [module.name for module in by_class if module.name]
    close = difflib.get_close_matches(plain, names, n=3, cutoff=0.4) or names[:3]
    kind = "" if rule.class_name is None else f" of class {_last(rule.class_name)}"
    return f"; modules{kind} with names like it: {', '.join(close)}" if close else ""


def _last(import_path: str) -> str:
    return import_path.rpartition(".")[2]


class _Parser:
    """Checks one entry of the file; every complaint names the rule."""

    def __init__(self, file: Path, index: int) -> None:
        self._file = file
        self._index = index
        self._match = ""

    def rule(self, entry: object) -> Rule:
        fields = self._mapping(
            entry, "a rule", allowed=("match", "replace", "recursive"), required=("match", "replace")
        )
        match = self._mapping(fields["match"], "match", allowed=("name", "class"))
        if not match:
            raise self._wrong("match must have name, class, or both")
        self._match = ", ".join(f"{key}: {value}" for key, value in match.items())
        for key, value in match.items():
            if not isinstance(value, str) or not value:
                raise self._wrong(f"match.{key} must be a text")
        recursive = fields.get("recursive", True)
        if not isinstance(recursive, bool):
            raise self._wrong(f"recursive must be true or false, not {recursive}")
        replace = self._mapping(fields["replace"], "replace", allowed=("class", "kwargs"))
        kwargs = self._mapping(replace.get("kwargs") or {}, "replace.kwargs", allowed=_KEYS)
        self._check_class(replace.get("class", "default"))
        devices = [self._device(key, kwargs[key]) for key in _DEVICE_KEYS if key in kwargs]
        for key in ("prefill_device", "out_device"):
            if key in kwargs:
                self._device(key, kwargs[key])
        return Rule(
            index=self._index,
            name=self._pattern(match["name"]) if "name" in match else None,
            class_name=match.get("class"),
            device=devices[0] if devices else None,
            notes=tuple(self._notes(kwargs)),
            recursive=recursive,
        )

    def _pattern(self, text: str) -> re.Pattern[str]:
        try:
            return re.compile(text)
        except re.error as error:
            hint = (
                "; a range of numbers is written as alternatives, (4|5|6), not in brackets"
                if "range" in str(error)
                else ""
            )
            raise self._wrong(f"name is not a regular expression: {error}{hint}") from error

    def _check_class(self, value: object) -> None:
        if not isinstance(value, str) or _last(value) not in CLASSES:
            raise self._wrong(f"replace.class {value} is not known; known are {', '.join(sorted(CLASSES))}")

    def _device(self, key: str, value: object) -> str:
        if not isinstance(value, str) or not _DEVICE.fullmatch(value):
            raise self._wrong(f"replace.kwargs.{key} must be cpu, cuda or cuda:N, not {value}")
        return value

    def _notes(self, kwargs: Mapping[str, Any]) -> Iterable[str]:
        for key in _BACKEND_KEYS:
            if key in kwargs:
                value = kwargs[key]
                if not isinstance(value, str) or value not in BACKENDS:
                    raise self._wrong(f"replace.kwargs.{key} {value} is not known; known are {', '.join(BACKENDS)}")
                yield f"{value} is not used: {BACKENDS[value]}"
        for key, instead in _IGNORED_KEYS.items():
            if key in kwargs:
                yield f"{key} is not used: {instead}"

    def _mapping(
        self, value: object, what: str, allowed: Sequence[str], required: Sequence[str] = ()
    ) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(f"{what} must be a mapping with {', '.join(allowed)}")
        unknown = [str(key) for key in value if key not in allowed]
        if unknown:
            raise self._wrong(f"{what} has {', '.join(unknown)}; allowed are {', '.join(allowed)}")
        missing = [key for key in required if key not in value]
        if missing:
            raise self._wrong(f"{what} needs {', '.join(missing)}")
        return value

    def _wrong(self, problem: str) -> ConfigError:
        match = f" ({self._match})" if self._match else ""
        return ConfigError("optimize_config_path", self._file, f"rule {self._index}{match}: {problem}")
